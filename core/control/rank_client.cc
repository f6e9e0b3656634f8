#include "core/control/rank_client.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/control/fetch_status.h"
#include "core/control/messages.h"
#include "core/plan/plan_codec.h"
#include "core/tensor/manifest_codec.h"

namespace waybill {

namespace {

constexpr absl::Duration kBetweenLooksAtNics = absl::Seconds(1);

// A host is only a hint, for preferences: what reaches whom is tried out.
std::string OwnHostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

std::string EncodeWithNics(Manifest manifest, const Fabric& fabric) {
  if (manifest.host().empty()) manifest.set_host(OwnHostName());
  for (const FabricNic& nic : fabric.Nics()) {
    manifest.nics().push_back({nic.name, nic.rail, nic.numa_node, nic.bytes_per_second});
  }
  return EncodeManifest(manifest);
}

}  // namespace

RankClient::RankClient(RankId id, RankIdentity identity, const Manifest& manifest,
                       std::unique_ptr<Fabric> fabric)
    : identity_(std::move(identity)),
      id_(id),
      manifest_bytes_(EncodeWithNics(manifest, *fabric)),
      fabric_(std::move(fabric)) {}

void RankClient::StartThread() {
  thread_ = std::make_unique<EngineThread>(fabric_.get(), [this] {
    Step();
    if (absl::Now() < nics_due_) return;
    nics_due_ = absl::Now() + kBetweenLooksAtNics;
    SendNicsIfChanged();
  });
}

absl::Status RankClient::stream_status() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

std::vector<LaneReport> RankClient::lanes() const {
  const std::lock_guard lock(mutex_);
  return lanes_;
}

void RankClient::Send(proto::RankMessage message) {
  const std::lock_guard lock(stream_mutex_);
  if (stream_ != nullptr) stream_->Send(std::move(message));
}

absl::Status RankClient::Attend(proto::Join join) {
  const absl::Time deadline = absl::Now() + identity_.join_timeout;
  const std::string what = absl::StrCat("join job \"", identity_.job, "\" as ", ToString(id_));
  {
    const std::lock_guard lock(mutex_);
    established_ = false;
    end_ = absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<RankStream>> stream = RankStream::Open(
      identity_.controller, deadline, identity_.cancel,
      [this](const proto::ControllerMessage& message) {
        thread_->Do([this, message] { Handle(message); });
      },
      [this](const absl::Status& status) { thread_->Do([this, status] { End(status); }); });
  if (!stream.ok()) return While(what, stream.status());
  {
    const std::lock_guard lock(stream_mutex_);
    stream_ = *std::move(stream);
  }
  join.set_protocol_version(kProtocolVersion);
  join.set_token(identity_.token);
  join.set_job(identity_.job);
  join.set_role(static_cast<uint32_t>(id_.role));
  join.set_rank(id_.rank);
  join.set_world(identity_.world);
  join.set_group(identity_.group);
  proto::RankMessage message;
  *message.mutable_join() = std::move(join);
  Send(std::move(message));
  SendInParts(manifest_bytes_, [this](proto::Part part) {
    proto::RankMessage with_part;
    *with_part.mutable_manifest() = std::move(part);
    Send(std::move(with_part));
  });
  const std::stop_callback wake(identity_.cancel, [this] { WakeWaiters(); });
  std::unique_lock lock(mutex_);
  const bool told = AwaitLocked(lock, deadline, [this] {
    return established_ || !end_.ok() || identity_.cancel.stop_requested();
  });
  if (!end_.ok()) return While(what, end_);
  if (established_) return absl::OkStatus();
  if (told) return absl::CancelledError(absl::StrCat(what, ": cancelled"));
  lock.unlock();
  // The controller knows who is missing.
  const auto status = FetchStatus(identity_.controller, identity_.token, absl::Milliseconds(500));
  const std::string missing = status.ok() ? absl::StrCat("waiting for ", status->waiting_for())
                                          : std::string(status.status().message());
  return absl::DeadlineExceededError(absl::StrCat(what, ": the job is not whole after ",
                                                  absl::FormatDuration(identity_.join_timeout),
                                                  ", ", missing));
}

void RankClient::Shut() {
  // After what the thread is saying: a worker may leave as soon as it sees a version shown, and
  // SHOWN has to come first.
  thread_->DoAndWait([this] {
    proto::RankMessage message;
    message.mutable_leave();
    Send(std::move(message));
  });
  std::unique_ptr<RankStream> stream;
  {
    const std::lock_guard lock(stream_mutex_);
    stream = std::move(stream_);
  }
  stream.reset();
  thread_.reset();
}

void RankClient::EndOnThread(const absl::Status& status) {
  thread_->DoAndWait([&] {
    leaving_ = true;
    End(status);
  });
}

void RankClient::End(const absl::Status& status) {
  bool was_established = false;
  {
    const std::lock_guard lock(mutex_);
    if (!end_.ok()) return;  // What came first says more.
    end_ = status;
    was_established = std::exchange(established_, false);
  }
  OnStreamEnd(status);
  NotifyAll();
  if (was_established && !leaving_ && identity_.on_end) identity_.on_end(status);
}

void RankClient::Handle(const proto::ControllerMessage& message) {
  switch (message.kind_case()) {
    case proto::ControllerMessage::kPlan:
      plan_ = message.plan();
      epoch_ = plan_.epoch();
      table_.clear();
      return;
    case proto::ControllerMessage::kRoutes:
      return TakeRoutes(message.routes());
    case proto::ControllerMessage::kConnect:
      if (message.connect().epoch() != epoch_) return;
      if (absl::Status status = OnConnect(message.connect()); !status.ok()) LanesFailed(status);
      return;
    case proto::ControllerMessage::kEstablished: {
      if (message.established().epoch() != epoch_) return;
      const std::lock_guard lock(mutex_);
      established_ = true;
      groups_.assign(message.established().groups().begin(), message.established().groups().end());
      NotifyAll();
      return;
    }
    case proto::ControllerMessage::kDismissal:
      return End(DecodeError(message.dismissal().error()));
    default:
      return OnUpdateMessage(message);
  }
}

void RankClient::TakeRoutes(const proto::Part& part) {
  table_.append(part.data());
  if (!part.last()) return;
  absl::StatusOr<RankPlan> plan = DecodeRankPlan(table_);
  table_.clear();
  if (!plan.ok()) return LanesFailed(plan.status());
  absl::StatusOr<proto::Offers> offers =
      OnPlan(*std::move(plan), plan_.plan_hash(), DecodeLanes(plan_));
  if (!offers.ok()) return LanesFailed(offers.status());
  offers->set_epoch(epoch_);
  proto::RankMessage message;
  *message.mutable_offers() = *std::move(offers);
  Send(std::move(message));
}

void RankClient::LanesConnected(const std::vector<LaneReport>& lanes) {
  proto::RankMessage message;
  message.mutable_connected()->set_epoch(epoch_);
  for (const LaneReport& lane : lanes) {
    proto::LaneReport* report = message.mutable_connected()->add_lanes();
    report->set_peer(lane.peer);
    report->set_path(lane.path);
    report->set_co_owner(lane.co_owner);
  }
  for (const FabricCount& count : fabric_->Counts()) {
    if (count.name == "fallbacks") message.mutable_connected()->set_fallbacks(count.value);
  }
  {
    const std::lock_guard lock(mutex_);
    lanes_ = lanes;
  }
  Send(std::move(message));
}

void RankClient::SendNicsIfChanged() {
  proto::RankMessage message;
  message.mutable_nics();
  for (const FabricNic& nic : fabric_->Nics()) {
    proto::UsableNic* out = message.mutable_nics()->add_nics();
    out->set_name(nic.name);
    out->set_rail(nic.rail);
    out->set_numa_node(nic.numa_node);
    out->set_bytes_per_second(nic.bytes_per_second);
  }
  std::string nics = message.SerializeAsString();
  // The first time it is what the manifest says.
  const bool known = nics_.empty() || nics == nics_;
  nics_ = std::move(nics);
  if (!known) Send(std::move(message));
}

// Without lanes there is no part in the job: others are told by the stream's end.
void RankClient::LanesFailed(const absl::Status& status) {
  End(While("connect the lanes", status));
  proto::RankMessage message;
  message.mutable_leave();
  Send(std::move(message));
}

}  // namespace waybill
