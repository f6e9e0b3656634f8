// SPDX-License-Identifier: Apache-2.0

// Sequences of messages: what ranks that lie say to a controller, and what a controller that lies
// says to a trainer and a worker.
//
// An input is a byte that picks who hears it, then records: a byte for the stream or a command, two
// for the length of a message, and the message.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/deflate.h"
#include "core/protocol/coordinator.h"
#include "core/protocol/message_codec.h"
#include "core/protocol/trainer_session.h"
#include "core/protocol/worker_session.h"
#include "core/tensor/manifest_codec.h"
#include "testing/fuzz/fuzz_target.h"

namespace waybill::fuzz {
namespace {

constexpr char kToController = 'c', kToRelaying = 'r', kToTrainer = 't', kToWorker = 'w';
// In place of a stream's number.
constexpr uint8_t kTimePasses = 0x40, kGone = 0x80, kCommand = 0xC0;
constexpr absl::Time kBegin = absl::FromUnixSeconds(1'000'000);

struct Record {
  uint8_t what = 0;
  std::string message;
};

std::string Encode(const std::vector<Record>& records) {
  std::string bytes;
  for (const Record& record : records) {
    bytes += static_cast<char>(record.what);
    bytes += static_cast<char>(record.message.size() & 0xFF);
    bytes += static_cast<char>(record.message.size() >> 8);
    bytes += record.message;
  }
  return bytes;
}

std::vector<Record> Decode(absl::string_view bytes) {
  std::vector<Record> records;
  while (bytes.size() >= 3) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
    const size_t size = std::min<size_t>(byte(1) | size_t{byte(2)} << 8, bytes.size() - 3);
    records.push_back({byte(0), std::string(bytes.substr(3, size))});
    bytes.remove_prefix(3 + size);
  }
  return records;
}

// Two trainers with a row each and two workers that want both, which relay.
Manifest ManifestOf(Role role, uint32_t rank) {
  Manifest manifest;
  const int64_t rows = role == Role::kTrainer ? 1 : 2;
  const int64_t first = role == Role::kTrainer ? rank : 0;
  manifest.AddRegion("w", static_cast<uint64_t>(rows) * 8);
  manifest.AddShard(manifest.AddTensor("w", {2, 4}, Dtype::kBf16), {Dtype::kBf16},
                    Box({first, 0}, {first + rows, 4}), {0, 0, {4, 1}});
  return manifest;
}

// The coordinator and what it asks for, without ranks.
class Table : public CoordinatorActions {
 public:
  explicit Table(Relays relays)
      : coordinator_({.job = "fuzz", .incarnation = 7, .relays = relays}, {}, this) {}

  void Hear(ConnectionId from, const proto::RankMessage& message) {
    coordinator_.OnMessage(from, message, now_);
    Work();
  }
  void Leave(ConnectionId from) {
    coordinator_.OnGone(from, now_);
    Work();
  }
  void Pass(absl::Duration time) {
    now_ = std::max(now_ + time, std::min(coordinator_.next_deadline(), now_ + absl::Hours(1)));
    coordinator_.OnTime(now_);
    Work();
    Require(coordinator_.next_deadline() > now_, "the next deadline lies in the future");
  }
  const Coordinator& coordinator() const { return coordinator_; }

 protected:
  void Send(ConnectionId, proto::ControllerMessage) override {}

 private:
  void Close(ConnectionId) override {}
  void Compute(CoordinatorActions::Work work) override { work_.push_back(std::move(work)); }
  void Record(uint64_t ticket, const Decision&) override { tickets_.push_back(ticket); }
  void Forget(const std::string&) override {}

  void Work() {
    while (!work_.empty() || !tickets_.empty()) {
      for (const CoordinatorActions::Work& work : std::exchange(work_, {})) work(InTurn)(now_);
      for (const uint64_t ticket : std::exchange(tickets_, {})) {
        coordinator_.OnRecorded(ticket, Recorded::kDurable, absl::OkStatus(), now_);
      }
    }
  }

  absl::Time now_ = kBegin;
  std::vector<CoordinatorActions::Work> work_;
  std::vector<uint64_t> tickets_;
  Coordinator coordinator_;
};

// A table with ranks that answer as they should. Notes what is said.
class Job final : public Table {
 public:
  explicit Job(Relays relays) : Table(relays) {
    for (const uint8_t rank : {0, 1}) {
      Join(rank, Role::kTrainer, rank);
      Join(2 + rank, Role::kWorker, rank);
    }
    Answer();
  }
  void Publish(uint64_t version) {
    for (const uint8_t t : {0, 1}) {
      proto::RankMessage message;
      message.mutable_publish()->set_version(version);
      message.mutable_publish()->set_attempt(version);
      Say(t, message);
    }
    Answer();
  }
  // The ranks answer no messages of this kind any more.
  void Ignore(proto::ControllerMessage::KindCase kind) { ignored_.insert(kind); }
  void Say(uint8_t from, const proto::RankMessage& message) {
    said_.push_back({from, message.SerializeAsString()});
    Hear(from, message);
  }
  void Go(uint8_t from) {
    said_.push_back({static_cast<uint8_t>(kGone | from), ""});
    Leave(from);
    Answer();
  }
  void Answer() {
    while (!heard_.empty()) {
      const auto [rank, message] = std::move(heard_.front());
      heard_.pop_front();
      if (!ignored_.contains(message.kind_case())) AnswerTo(rank, message);
    }
  }

  std::vector<fuzz::Record> said_;
  std::map<ConnectionId, std::vector<fuzz::Record>> sent_;  // To each rank.
  proto::Round round_;

 private:
  void Join(uint8_t from, Role role, uint32_t rank) {
    manifests_[from] = EncodeInParts(ManifestOf(role, rank));
    proto::RankMessage message;
    proto::Join* join = message.mutable_join();
    join->set_protocol_version(kProtocolVersion);
    join->set_job("fuzz");
    join->set_role(static_cast<uint32_t>(role));
    join->set_rank(rank);
    join->set_world(2);
    join->set_group("all");
    join->set_incarnation(from + 1);
    join->set_mode(static_cast<uint32_t>(Mode::kShadow));
    join->set_catch_up(true);
    Say(from, message);
    proto::RankMessage manifest;
    manifest.mutable_manifest()->set_head(manifests_[from].head);
    Say(from, manifest);
  }

  void Send(ConnectionId to, proto::ControllerMessage message) override {
    sent_[to].push_back({0, message.SerializeAsString()});
    heard_.emplace_back(static_cast<uint8_t>(to), std::move(message));
  }

  void AnswerTo(uint8_t rank, const proto::ControllerMessage& message) {
    proto::RankMessage m;
    if (message.has_part_wanted()) {
      const proto::PartName& name = message.part_wanted().name();
      *m.mutable_part()->mutable_name() = name;
      m.mutable_part()->set_deflated(Deflate(
          static_cast<PartKind>(name.kind()) == PartKind::kTensors ? manifests_[rank].tensors
                                                                   : manifests_[rank].holdings));
    } else if (message.has_plan()) {
      m.mutable_offers()->set_epoch(message.plan().epoch());
      m.mutable_offers()->set_relay(message.plan().relay());
    } else if (message.has_connect()) {
      m.mutable_connected()->set_epoch(message.connect().epoch());
      m.mutable_connected()->set_relay(message.connect().relay());
    } else if (message.has_prepare()) {
      round_ = message.prepare().round();
      *m.mutable_ready()->mutable_round() = round_;
      Say(rank, m);
      *m.mutable_arrived()->mutable_round() = round_;
    } else if (message.has_commit()) {
      *m.mutable_shown()->mutable_round() = message.commit().round();
      m.mutable_shown()->set_version(message.commit().version());
    } else if (message.has_abort()) {
      *m.mutable_relay_stopped()->mutable_round() = message.abort().round();
    } else if (message.has_sender_lost() && rank < 2) {
      *m.mutable_kept()->mutable_round() = message.sender_lost().round();
      m.mutable_kept()->set_kept(true);
    } else if (message.has_sender_lost()) {
      *m.mutable_lacking()->mutable_round() = message.sender_lost().round();
      *m.mutable_lacking()->mutable_senders() = message.sender_lost().senders();
    } else {
      return;
    }
    Say(rank, m);
  }

  std::map<uint8_t, EncodedManifest> manifests_;
  std::set<proto::ControllerMessage::KindCase> ignored_;
  std::deque<std::pair<uint8_t, proto::ControllerMessage>> heard_;
};

void LoseLane(Job& job, uint8_t from, uint32_t peer, bool relay) {
  proto::RankMessage message;
  message.mutable_lane_failed()->set_epoch(job.round_.epoch());
  message.mutable_lane_failed()->set_peer(peer);
  message.mutable_lane_failed()->set_relay(relay);
  *message.mutable_lane_failed()->mutable_error() = EncodeError(absl::UnavailableError("torn"));
  job.Say(from, message);
  job.Answer();
}

// A host whose engine does nothing of its own.
template <typename Base>
class Host : public Base {
 public:
  void OpenStream() override {}
  void CloseStream() override {}
  void Send(proto::RankMessage message) override { last_sent = std::move(message); }
  void Tell(Notice notice) override { last_told = std::move(notice); }
  proto::RankReport MakeReport() const override { return {}; }
  absl::StatusOr<proto::Offers> SetPlan(TermPlan) override { return proto::Offers(); }
  absl::Status Connect(const std::string&, const proto::Connect&) override {
    return absl::OkStatus();
  }
  absl::Status SetBufferAddress(const std::string&, uint32_t, uint32_t,
                                const proto::Buffer&) override {
    return absl::OkStatus();
  }
  void ForgetGroup(const std::string&) override {}

  proto::RankMessage last_sent;
  Notice last_told;
  std::map<std::string, UpdateId> sending;  // By group.
};

class TrainerSide final : public Host<TrainerHost> {
 public:
  absl::Status Start(const std::string& group, const UpdateId& update, const PublishCommand&,
                     const proto::Start&) override {
    sending[group] = update;
    return absl::OkStatus();
  }
  void Abort(const std::string&, const UpdateId&) override {}
  void StopNow(const std::string& group) override { sending.erase(group); }
};

class WorkerSide final : public Host<WorkerHost> {
 public:
  void Prepare(const UpdateId& update, bool, absl::Time) override { update_ = update; }
  void Continue(const UpdateId&, const UpdateId& to) override { update_ = to; }
  void LoseSender(uint32_t) override {}
  void Commit(const UpdateId& update) override { committed_ = update; }
  void Abort(const UpdateId&, bool) override {}
  uint64_t shown_version() const override { return shown_; }
  absl::Status StartSending(const std::string&, const UpdateId&, const proto::Start&) override {
    return absl::OkStatus();
  }
  void StopRelaying(uint64_t, uint32_t) override {}

  std::optional<UpdateId> update_, committed_;
  uint64_t shown_ = 0;
};

SessionOptions OptionsOf(Role role) {
  SessionOptions options;
  options.id = {role, 0, role == Role::kWorker ? "all" : ""};
  options.job = "fuzz";
  options.world = 2;
  options.incarnation = 1;
  options.manifest = EncodeInParts(ManifestOf(role, 0));
  return options;
}

// What the engine and the user of a trainer may do at any time.
void Do(uint8_t command, TrainerSession& session, TrainerSide& side, uint64_t& version,
        absl::Time now) {
  switch (command % 8) {
    case 0:
      ++version;
      return session.Publish(version, {.version = version, .deadline = now + absl::Seconds(3)},
                             now);
    case 1:
      ++version;
      return session.Publish(version,
                             {.version = version,
                              .deadline = now + absl::Seconds(3),
                              .until_committed = true,
                              .hold = true},
                             now);
    case 2:
      return session.Cancel(version, now);
    case 3:
      return session.Release(1000 + version, now);
    case 4:
    case 5:
      for (const auto& [group, update] : std::exchange(side.sending, {})) {
        command % 8 == 4 ? session.OnSent(group, update, now)
                         : session.OnStopped(group, update, now);
      }
      return;
    case 6:
      for (const auto& [group, update] : side.sending) {
        session.OnRefused(group, absl::InternalError("NaN"));
      }
      return;
    default:
      return session.OnConnected("all", {});
  }
}

// Likewise of a worker.
void Do(uint8_t command, WorkerSession& session, WorkerSide& side, uint64_t&, absl::Time now) {
  const UpdateId update = side.update_.value_or(UpdateId());
  switch (command % 8) {
    case 0:
      return session.OnReady(update, {});
    case 1:
      return session.OnArrived(update);
    case 2:
      if (!side.committed_) return;
      side.shown_ = side.committed_->version;
      return session.OnShown(*std::exchange(side.committed_, std::nullopt), {}, false, now);
    case 3:
      return session.OnFailed(update, absl::InternalError("a digest"), /*wrong_base=*/true, now);
    case 4:
      return session.OnLacking(update, {0, 1});
    case 5:
      return session.OnRefused(update, absl::InternalError("no memory"));
    case 6:
      return session.OnRelayStopped(update.epoch, update.sequence);
    default:
      return session.OnConnected("all", {});
  }
}

template <typename Session, typename Side>
void Talk(Session& session, Side& side, const std::vector<Record>& records) {
  absl::Time now = kBegin;
  uint64_t version = 0;
  session.Join(1'000'000, now + absl::Minutes(1), now);
  session.OnStreamOpen(now);
  for (const Record& record : records) {
    if ((record.what & kCommand) == kCommand) {
      Do(record.what & 0x3F, session, side, version, now);
    } else if (record.what & kGone) {
      session.OnStreamEnd(absl::UnavailableError("gone"), now);
      session.OnStreamOpen(now);
    } else if (record.what & kTimePasses) {
      now = std::max(now + absl::Milliseconds(1),
                     std::min(session.next_deadline(), now + absl::Minutes(1)));
      session.OnTime(now);
      session.OnStreamOpen(now);
    } else {
      proto::ControllerMessage message;
      if (message.ParseFromString(record.message)) session.OnMessage(message, now);
    }
  }
}

void HearAll(const std::vector<Record>& records, Relays relays) {
  Table table(relays);
  for (const Record& record : records) {
    const ConnectionId from = record.what & 0x3F;
    if (record.what & kGone) {
      table.Leave(from);
    } else if (record.what & kTimePasses) {
      table.Pass(absl::Milliseconds(1 << (from % 16)));
    } else {
      proto::RankMessage message;
      if (message.ParseFromString(record.message)) table.Hear(from, message);
    }
  }
  (void)table.coordinator().Status();
  (void)table.coordinator().JobTensors();
}

// A session hears the messages, and its engine does a bit of everything in between.
std::string WithCommands(char who, const std::vector<Record>& messages) {
  std::vector<Record> records;
  uint8_t command = 0;
  for (const Record& message : messages) {
    records.push_back(message);
    records.push_back({static_cast<uint8_t>(kCommand | 7), ""});
    records.push_back({static_cast<uint8_t>(kCommand | command++ % 8), ""});
  }
  return who + Encode(records);
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  const auto add = [&](const Job& job, Relays relays) {
    seeds.push_back((relays == Relays::kAlways ? kToRelaying : kToController) + Encode(job.said_));
    seeds.push_back(WithCommands(kToTrainer, job.sent_.at(0)));
    seeds.push_back(WithCommands(kToWorker, job.sent_.at(2)));
  };
  for (const Relays relays : {Relays::kNever, Relays::kAlways}) {
    Job committed(relays);
    committed.Publish(5);
    committed.Publish(6);
    add(committed, relays);
    Job unfinished(relays);
    unfinished.Ignore(proto::ControllerMessage::kCommit);
    unfinished.Publish(5);
    unfinished.Go(0);
    unfinished.Go(1);
    add(unfinished, relays);
    Job torn(relays);
    torn.Publish(5);
    torn.Ignore(proto::ControllerMessage::kPrepare);
    torn.Publish(6);
    LoseLane(torn, 2, 1, relays == Relays::kAlways);
    torn.Go(3);
    add(torn, relays);
  }
  return seeds;
}

}  // namespace waybill::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace waybill;
  using namespace waybill::fuzz;
  if (size == 0) return 0;
  google::protobuf::SetLogHandler(nullptr);
  const std::vector<Record> records = Decode({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (data[0] == kToTrainer) {
    TrainerSide side;
    TrainerSession session(OptionsOf(Role::kTrainer), &side);
    Talk(session, side, records);
  } else if (data[0] == kToWorker) {
    WorkerSide side;
    WorkerSession session(OptionsOf(Role::kWorker), {}, &side);
    Talk(session, side, records);
  } else {
    HearAll(records, data[0] == kToRelaying ? Relays::kAlways : Relays::kNever);
  }
  return 0;
}
