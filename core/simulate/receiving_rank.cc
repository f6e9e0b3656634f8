// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/simulate/ranks.h"

namespace waybill::simulate {
namespace {

SessionOptions OptionsOf(const World& world, uint32_t rank, EncodedManifest manifest,
                         const proto::Nics& nics) {
  SessionOptions options;
  options.id = {Role::kWorker, rank, std::string(kDefaultGroup)};
  options.job = "simulated";
  options.world = world.traffic.workers();
  options.mode = world.mode;
  options.incarnation = 2 * rank + 2;
  options.manifest = std::move(manifest);
  options.nics = nics;
  return options;
}

}  // namespace

ReceivingRank::ReceivingRank(World* world, RankResult* result, EncodedManifest manifest,
                             const proto::Nics& nics)
    : world_(*world),
      result_(*result),
      rank_(result->id.rank),
      session_(OptionsOf(*world, rank_, std::move(manifest), nics), {}, this),
      alarm_(&world->time,
             [this] {
               if (world_.time.time() >= session_.next_deadline())
                 session_.OnTime(world_.time.time());
               Call();
             }),
      verifiers_(
          world->CoresOf(Role::kWorker, rank_),
          world->hardware.workers.memory == MemoryPlace::kGpu ? 1 : world->hardware.workers.threads,
          world->fabrics.slowdown(Role::kWorker, rank_)),
      progress_(world->CoresOf(Role::kWorker, rank_), 1,
                world->fabrics.slowdown(Role::kWorker, rank_)),
      relayers_(world->CoresOf(Role::kWorker, rank_), 1,
                world->fabrics.slowdown(Role::kWorker, rank_)) {
  FindRelays();
}

void ReceivingRank::Call() { alarm_.Set(session_.next_deadline()); }

void ReceivingRank::Join() {
  session_.Join(1, world_.time.time() + absl::Hours(1), world_.time.time());
  Call();
}

void ReceivingRank::OnOpen() {
  session_.OnStreamOpen(world_.time.time());
  Call();
}

void ReceivingRank::OnMessage(const proto::ControllerMessage& message) {
  session_.OnMessage(message, world_.time.time());
  Call();
}

void ReceivingRank::OnClose() {
  session_.OnStreamEnd(absl::UnavailableError("the controller ended the stream"),
                       world_.time.time());
  Call();
}

void ReceivingRank::Tell(Notice notice) {
  if (!notice.status.ok()) world_.Fail(notice.status);
  if (notice.kind == Notice::Kind::kJoined) ++world_.joined;
}

absl::StatusOr<proto::Offers> ReceivingRank::SetPlan(TermPlan plan) {
  proto::Offers offers;
  senders_.clear();
  uint32_t lanes = 0;
  for (const PeerLanes& peer : plan.lanes.peers) {
    senders_[peer.peer] = {
        .first_lane = lanes, .lanes_left = static_cast<uint32_t>(peer.lanes.size()), .stored = {}};
    lanes += static_cast<uint32_t>(peer.lanes.size());
    for (size_t i = 0; i < peer.lanes.size(); ++i) {
      proto::Lane* offer = offers.add_lanes();
      offer->set_peer(peer.peer);
      offer->set_address("simulated");
    }
  }
  gate_ = std::make_unique<ArrivalGate>(lanes);
  for (int buffer = 0; buffer < 2; ++buffer) {
    proto::Buffer* offer = offers.add_buffers();
    offer->add_regions()->set_key("simulated");
    offer->set_ledger("simulated");
  }
  return offers;
}

absl::Status ReceivingRank::Connect(const std::string& group, const proto::Connect&) {
  world_.time.After(0, [this, group] {
    session_.OnConnected(group, {});
    Call();
  });
  return absl::OkStatus();
}

void ReceivingRank::Prepare(const UpdateId& update, bool, absl::Time) {
  update_ = update;
  gate_->Arm(update.sequence);
  world_.time.After(world_.hardware.control.prepare, [this] {
    ready_at_ = world_.time.now();
    session_.OnReady(update_, 0, 0, {});
    Call();
  });
}

void ReceivingRank::OnData(uint32_t trainer, uint64_t bytes, SendWay way) {
  world_.Note(result_, Stage::kWire, ready_at_, 0);
  direct_left_ -= std::min(direct_left_, bytes);
  RelayWhatArrived();
  if (!world_.digests) return;
  if (way == SendWay::kStored) {
    senders_[trainer].stored.push_back(bytes);
  } else {
    Verify(bytes);
  }
}

void ReceivingRank::OnLaneEnd(uint32_t trainer, uint32_t lane, uint32_t sequence) {
  world_.Note(result_, Stage::kWire, ready_at_, 0);
  Sender& sender = senders_[trainer];
  gate_->Count(sender.first_lane + lane, sequence);
  if (--sender.lanes_left == 0) {
    for (const uint64_t bytes : std::exchange(sender.stored, {})) Verify(bytes);
  }
  ArriveIfComplete();
}

void ReceivingRank::Verify(uint64_t bytes) {
  const double seconds = static_cast<double>(bytes) / world_.hardware.workers.rates.digest;
  ++verifying_;
  verifiers_.Run(seconds, [this, seconds] {
    world_.Note(result_, Stage::kVerify, world_.time.now() - seconds, seconds);
    --verifying_;
    ArriveIfComplete();
  });
}

void ReceivingRank::ArriveIfComplete() {
  if (!gate_->open() || verifying_ > 0 || relayed_left_ > 0 || std::exchange(arrived_, true))
    return;
  voted_at_ = world_.time.now();
  world_.time.After(0, [this] {
    session_.OnArrived(update_);
    Call();
  });
}

// --- relaying ---

void ReceivingRank::FindRelays() {
  if (world_.traffic.relays.empty()) return;
  for (const PairTraffic& pair : world_.traffic.pairs) {
    if (pair.worker == rank_) direct_bytes_ += pair.bytes;
  }
  direct_left_ = direct_bytes_;
  for (const PairTraffic& pair : world_.traffic.relays) {
    if (pair.worker == rank_) relayed_left_ += pair.bytes;
    if (pair.trainer != rank_) continue;
    relays_.push_back({.worker = pair.worker,
                       .bytes = pair.bytes,
                       .writes = pair.writes,
                       .pieces = (pair.bytes + world_.piece_bytes - 1) / world_.piece_bytes});
  }
  // Each begins with another worker.
  std::rotate(
      relays_.begin(),
      std::upper_bound(relays_.begin(), relays_.end(), rank_,
                       [](uint32_t rank, const Relay& relay) { return rank < relay.worker; }),
      relays_.end());
}

// Relays as large a part of each worker's bytes as has arrived here of what trainers send.
void ReceivingRank::RelayWhatArrived() {
  const uint64_t here = direct_bytes_ - direct_left_;
  for (bool more = true; more;) {
    more = false;
    for (uint32_t r = 0; r < relays_.size(); ++r) {
      Relay& relay = relays_[r];
      const auto ready =
          static_cast<uint64_t>(static_cast<double>(relay.pieces) *
                                (static_cast<double>(here) / static_cast<double>(direct_bytes_)));
      if (relay.sent >= ready) continue;
      const uint64_t i = relay.sent++;
      const auto share = [&](uint64_t all) {
        return all * (i + 1) / relay.pieces - all * i / relay.pieces;
      };
      RelayPiece(r, share(relay.bytes), std::max<uint64_t>(1, share(relay.writes)));
      more = true;
    }
  }
}

void ReceivingRank::RelayPiece(uint32_t relay, uint64_t bytes, uint64_t writes) {
  const double copy = static_cast<double>(bytes) / world_.hardware.workers.rates.copy;
  relayers_.Run(copy, [this, worker = relays_[relay].worker, bytes, writes, copy] {
    world_.Note(result_, Stage::kStage, world_.time.now() - copy, copy);
    SendPiece(worker, bytes, writes);
  });
}

void ReceivingRank::SendPiece(uint32_t worker, uint64_t bytes, uint64_t writes) {
  std::vector<Port*> path;
  if (world_.carrier() == Carrier::kNics) {
    const uint32_t nics = std::max(1u, world_.fabrics.nics_per_rank(Role::kWorker));
    const uint32_t nic = next_nic_++ % nics;
    path = world_.fabrics.Path(Role::kWorker, rank_, nic, worker, nic);
  }
  auto landed = [this, worker, bytes, path] {
    world_.last_landed = world_.time.now();
    world_.last_sender = {Role::kWorker, rank_};
    world_.last_worker = worker;
    world_.last_path = path;
    world_.receivers[worker]->OnRelayed(bytes);
  };
  Carry(
      world_, progress_,
      {.worker = worker, .lane = worker, .bytes = bytes, .writes = writes, .path = path},
      [](double) {}, std::move(landed));
}

void ReceivingRank::OnRelayed(uint64_t bytes) {
  world_.Note(result_, Stage::kWire, ready_at_, 0);
  relayed_left_ -= std::min(relayed_left_, bytes);
  if (world_.digests) Verify(bytes);
  ArriveIfComplete();
}

void ReceivingRank::Commit(const UpdateId& update) {
  const Machine& machine = world_.hardware.workers;
  double seconds = world_.hardware.control.show;
  if (world_.mode == Mode::kShadowCopy) {
    seconds += static_cast<double>(result_.held_bytes) / machine.rates.copy;
  }
  if (machine.memory == MemoryPlace::kGpu && !machine.nic_reaches_gpu) {
    seconds += static_cast<double>(result_.held_bytes) / machine.pcie;
  }
  verifiers_.Run(seconds, [this, update, seconds] {
    shown_ = update.version;
    ++world_.shown;
    world_.Note(result_, Stage::kCommit, voted_at_, seconds);
    session_.OnShown(update, absl::Seconds(seconds), /*unchanged=*/false, world_.time.time());
    Call();
  });
}

void ReceivingRank::Abort(const UpdateId&, bool) {
  world_.Fail(absl::AbortedError(absl::StrCat("worker ", rank_, " was told to abort")));
}

}  // namespace waybill::simulate
