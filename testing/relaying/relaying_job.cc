// SPDX-License-Identifier: Apache-2.0

#include "testing/relaying/relaying_job.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/tensor/manifest.h"

namespace waybill {
namespace {

constexpr int64_t kRows = 64;
constexpr int64_t kColumns = 128;
constexpr uint64_t kChunk = 4 << 10;

Box BoxOf(const RankId& id) {
  if (id.role == Role::kWorker) return Box::Whole({kRows, kColumns});
  const int64_t each = kRows / RelayingJob::kTrainers;
  return Box({id.rank * each, 0}, {(id.rank + 1) * each, kColumns});
}

Manifest ManifestOf(const RankId& id) {
  const Box box = BoxOf(id);
  Manifest manifest;
  manifest.AddRegion("w", static_cast<uint64_t>(box.element_count()) * 2);
  manifest.AddShard(manifest.AddTensor("w", {kRows, kColumns}, Dtype::kBf16), {Dtype::kBf16}, box,
                    {0, 0, {kColumns, 1}});
  return manifest;
}

// Element i of version v has the bits v * 1000 + i.
std::vector<std::byte> BytesOf(const RankId& id, uint64_t version) {
  const Box box = BoxOf(id);
  std::vector<uint16_t> values;
  for (int64_t i = box.begin(0) * kColumns; i < box.end(0) * kColumns; ++i) {
    values.push_back(static_cast<uint16_t>(version * 1000 + static_cast<uint64_t>(i)));
  }
  std::vector<std::byte> bytes(values.size() * 2);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

SenderEngineOptions Sending() {
  return {
      .ring_bytes = 8 * kChunk, .chunk_bytes = kChunk, .stage_threads = 0, .announced_bytes = 1};
}

}  // namespace

int RelayingJob::Member::Said(proto::RankMessage::KindCase kind) const {
  return static_cast<int>(std::count_if(
      said.begin(), said.end(), [&](const auto& message) { return message.kind_case() == kind; }));
}

int RelayingJob::Member::Heard(proto::ControllerMessage::KindCase kind) const {
  return static_cast<int>(std::count_if(heard.begin(), heard.end(), [&](const auto& message) {
    return message.kind_case() == kind;
  }));
}

RelayingJob::RelayingJob(const RelayingOptions& options)
    : options_(options), members_(kTrainers + kWorkers) {
  coordinator_ = std::make_unique<Coordinator>(
      CoordinatorOptions{.decisions_are_durable = true, .relays = Relays::kAlways},
      std::vector<Decision>(), static_cast<CoordinatorActions*>(this));
  for (uint32_t i = 0; i < members_.size(); ++i) {
    members_[i].id = i < kTrainers
                         ? RankId{Role::kTrainer, i}
                         : RankId{Role::kWorker, i - kTrainers, std::string(kDefaultGroup)};
    MakeRank(members_[i]);
  }
}

RelayingJob::~RelayingJob() {
  for (Member& member : members_) {
    member.trainer.reset();
    member.worker.reset();
  }
}

void RelayingJob::MakeRank(Member& member) {
  member.fabric = std::make_unique<FaultyFabric>(
      options_.make_fabric ? options_.make_fabric() : network_.Join(ToString(member.id)));
  const bool trainer = member.id.role == Role::kTrainer;
  SessionOptions session;
  session.id = member.id;
  session.world = trainer ? kTrainers : kWorkers;
  session.mode = options_.mode;
  session.incarnation = 2 * member.id.rank + (trainer ? 1 : 2);
  Manifest manifest = ManifestOf(member.id);
  const size_t bytes = manifest.region_bytes(0);
  if (trainer) {
    member.own_memory.resize(bytes);
    member.memory = {MemoryKind::kHost, member.own_memory.data(), bytes};
    member.trainer = *TrainerRank::Create(session, Sending(), std::move(manifest), {member.memory},
                                          member.fabric.get(), &member);
    member.trainer->Join(++last_token_, now_ + absl::Seconds(60), now_);
    return;
  }
  std::vector<MemorySpan> user_regions;
  if (options_.worker_memory != nullptr) {
    member.memory = options_.worker_memory->Allocate(bytes);
    user_regions.push_back(member.memory);
  }
  member.worker = *WorkerRank::Create(
      session, {.mode = options_.mode, .verify_threads = 0, .chunk_bytes = kChunk}, Sending(),
      std::move(manifest), user_regions, options_.asked, member.fabric.get(), &member);
  member.worker->Join(++last_token_, now_ + absl::Seconds(60), now_);
}

void RelayingJob::Send(ConnectionId connection, proto::ControllerMessage message) {
  for (Member& member : members_) {
    if (member.connection == connection) member.inbox.push_back(std::move(message));
  }
}

void RelayingJob::Deliver(Member& member) {
  if (std::exchange(member.opening, false)) {
    member.connection = ++last_connection_;
    member.trainer ? member.trainer->OnStreamOpen(now_) : member.worker->OnStreamOpen(now_);
  }
  while (!member.outbox.empty()) {
    const proto::RankMessage message = std::move(member.outbox.front());
    member.outbox.pop_front();
    coordinator_->OnMessage(member.connection, message, now_);
  }
  while (!member.inbox.empty() && !(hold && hold(member, member.inbox.front()))) {
    proto::ControllerMessage message = std::move(member.inbox.front());
    member.inbox.pop_front();
    if (change) change(member, message);
    member.heard.push_back(message);
    member.Hear(message, now_);
  }
}

void RelayingJob::Step() {
  for (Member& member : members_) Deliver(member);
  for (const Work& work : std::exchange(work_, {})) work(InTurn)(now_);
  for (const uint64_t ticket : std::exchange(records_, {})) {
    coordinator_->OnRecorded(ticket, Recorded::kDurable, absl::OkStatus(), now_);
  }
  if (now_ >= coordinator_->next_deadline()) coordinator_->OnTime(now_);
  for (Member& member : members_) {
    member.trainer ? member.trainer->Step(now_) : member.worker->Step(now_);
  }
  now_ += absl::Microseconds(100);
}

bool RelayingJob::StepUntil(const std::function<bool()>& done) {
  for (int i = 0; i < 100'000; ++i) {
    if (done()) return true;
    Step();
  }
  return false;
}

bool RelayingJob::Establish() {
  return StepUntil([&] {
    return coordinator_->Status().phase() == "ready" &&
           std::all_of(members_.begin(), members_.end(),
                       [](const Member& member) { return member.inbox.empty(); });
  });
}

void RelayingJob::Publish(uint64_t version, absl::Duration timeout) {
  for (uint32_t t = 0; t < kTrainers; ++t) {
    const std::vector<std::byte> bytes = BytesOf(trainer(t).id, version);
    std::memcpy(trainer(t).own_memory.data(), bytes.data(), bytes.size());
    trainer(t).trainer->Publish(++last_token_,
                                {.version = version,
                                 .deadline = now_ + timeout,
                                 .digests_off = options_.digests_off,
                                 .until_committed = true},
                                now_);
  }
}

absl::Status RelayingJob::OutcomeOf(uint64_t version) {
  for (const Notice& notice : trainer(0).notices) {
    if (notice.kind == Notice::Kind::kPublished && notice.version == version) return notice.status;
  }
  return absl::UnknownError("");
}

absl::Status RelayingJob::PublishAndAwait(uint64_t version) {
  Publish(version);
  StepUntil([&] { return !absl::IsUnknown(OutcomeOf(version)); });
  return OutcomeOf(version);
}

bool RelayingJob::AllShow(uint64_t version) {
  for (uint32_t w = 0; w < kWorkers; ++w) {
    const auto snapshot = worker(w).worker->TakeSnapshot("test");
    if (!snapshot.ok() || snapshot->version() != version) return false;
    const auto region = snapshot->region(0);
    std::vector<std::byte> shown(region.size());
    if (options_.worker_memory != nullptr) {
      options_.worker_memory->Read(worker(w).memory, shown.data());
    } else {
      std::memcpy(shown.data(), region.data(), region.size());
    }
    if (shown != BytesOf(worker(w).id, version)) return false;
  }
  return true;
}

}  // namespace waybill
