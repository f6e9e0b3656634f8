// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/simulate/changed_part.h"
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
      verifiers_(world->CoresOf(Role::kWorker, rank_), world->hardware.workers.working_threads(),
                 world->fabrics.slowdown(Role::kWorker, rank_)),
      progress_(world->CoresOf(Role::kWorker, rank_), 1,
                world->fabrics.slowdown(Role::kWorker, rank_)),
      schedule_(world->mode),
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
  std::vector<ReceiveSender> senders;
  for (const PeerLanes& peer : plan.lanes.peers) {
    const PairTraffic* pair = world_.traffic.Find(peer.peer, rank_);
    if (pair == nullptr) {
      return absl::InternalError("the skeleton's lanes are not those of the traffic");
    }
    AddSender({Role::kTrainer, peer.peer}, world_.PiecesOf(*pair), senders);
    senders.back().lane_count = static_cast<uint32_t>(peer.lanes.size());
    senders_.back().encodes = world_.Encodes(*pair);
    for (size_t i = 0; i < peer.lanes.size(); ++i) {
      proto::Lane* offer = offers.add_lanes();
      offer->set_peer(peer.peer);
      offer->set_address("simulated");
    }
  }
  for (const PairTraffic& pair : world_.traffic.relays) {
    if (pair.worker != rank_) continue;
    AddSender({Role::kWorker, pair.trainer}, world_.PiecesOf(pair.bytes), senders);
  }
  schedule_.SetSenders(plan.hash, senders, /*at_once=*/1);
  schedule_.set_passes_on(!relays_.empty());
  for (int buffer = 0; buffer < 2; ++buffer) {
    proto::Buffer* offer = offers.add_buffers();
    offer->add_regions()->set_key("simulated");
    offer->set_ledger("simulated");
  }
  return offers;
}

void ReceivingRank::AddSender(SenderId id, uint64_t pieces, std::vector<ReceiveSender>& senders) {
  Sender sender = {.id = id, .pieces = std::vector<uint64_t>(pieces), .to_come = pieces};
  if (!senders_.empty()) {
    sender.first_piece =
        senders_.back().first_piece + static_cast<uint32_t>(senders_.back().pieces.size());
  }
  index_of_[id] = static_cast<uint32_t>(senders_.size());
  senders_.push_back(std::move(sender));
  senders.push_back({.lane_count = 1, .chunk_count = static_cast<uint32_t>(pieces)});
}

absl::Status ReceivingRank::Connect(const std::string& group, const proto::Connect&) {
  schedule_.OnConnected();
  world_.time.After(0, [this, group] {
    session_.OnConnected(group, {});
    Call();
  });
  return absl::OkStatus();
}

void ReceivingRank::Prepare(const UpdateId& update, bool, absl::Time deadline) {
  const Verification verification = world_.digests ? Verification::kOn : Verification::kOff;
  if (absl::Status s = schedule_.Prepare(update, verification, deadline); !s.ok()) world_.Fail(s);
  world_.time.After(world_.hardware.control.prepare, [this] {
    Run();
    Call();
  });
}

void ReceivingRank::OnPiece(SenderId id, uint32_t piece, uint64_t bytes) {
  world_.Note(result_, Stage::kWire, ready_at_, 0);
  const uint32_t s = index_of_.at(id);
  senders_[s].pieces[piece] = bytes;
  if (world_.digests) {
    (void)schedule_.OnChunk(s, {.sequence = schedule_.update().sequence & 0xFF, .chunk = piece});
  }
  // A relay's last piece stands for the end of its lane.
  if (--senders_[s].to_come == 0 && id.first == Role::kWorker) {
    schedule_.OnLaneEnd(s, 0, schedule_.update().sequence);
  }
  Run();
}

void ReceivingRank::OnLaneEnd(SenderId id, uint32_t lane, uint32_t sequence) {
  world_.Note(result_, Stage::kWire, ready_at_, 0);
  schedule_.OnLaneEnd(index_of_.at(id), lane, sequence);
  Run();
}

void ReceivingRank::Run() {
  schedule_.Retry(world_.time.time(), [](uint32_t) { return true; });
  for (ReceiveCommand command; schedule_.Next(command);) Execute(command);
}

void ReceivingRank::Execute(const ReceiveCommand& command) {
  using Kind = ReceiveCommand::Kind;
  switch (command.kind) {
    case Kind::kOffer:
    case Kind::kContinue: {
      schedule_.OnOffered();
      ready_at_ = world_.time.now();
      proto::Ready ready;
      ready.set_buffer_index(command.buffer);
      return session_.OnReady(command.update, std::move(ready));
    }
    case Kind::kMakeVisible:
      schedule_.OnVisible(command.sender);
      return;
    case Kind::kPassOn:
      return PassOn(senders_[command.sender], command.chunks);
    case Kind::kDigest:
      return Digest(command.sender, command.chunks);
    case Kind::kCompare:
      return schedule_.OnVerified(command.sender);
    case Kind::kCheck:
      schedule_.OnArrived();
      voted_at_ = world_.time.now();
      return world_.time.After(0, [this, update = command.update] {
        session_.OnArrived(update);
        Call();
      });
    case Kind::kCopy:
      return schedule_.OnCopied(true);  // Show() takes the time.
    case Kind::kShow:
      return Show(command.update);
    case Kind::kExpire:
    case Kind::kLacking:
      return;
  }
}

void ReceivingRank::Digest(uint32_t s, absl::Span<const uint32_t> pieces) {
  senders_[s].digesting = pieces.size();
  const WorkRates& rates = world_.hardware.workers.rates;
  for (const uint32_t piece : pieces) {
    const auto bytes = static_cast<double>(senders_[s].pieces[piece - senders_[s].first_piece]);
    double seconds = bytes / rates.digest;
    if (senders_[s].encodes) {
      seconds += bytes / rates.copy + bytes / kElementBytes * *world_.changed * kDecodeSeconds;
    }
    verifiers_.Run(seconds, [this, s, seconds] {
      world_.Note(result_, Stage::kVerify, world_.time.now() - seconds, seconds);
      if (--senders_[s].digesting > 0) return;
      schedule_.OnDigested(s);
      Run();
    });
  }
}

// --- relaying ---

void ReceivingRank::FindRelays() {
  if (world_.traffic.relays.empty()) return;
  for (const PairTraffic& pair : world_.traffic.pairs) {
    if (pair.worker == rank_) direct_bytes_ += pair.bytes;
  }
  const std::vector<PairTraffic>& all = world_.traffic.relays;
  auto pair = std::lower_bound(
      all.begin(), all.end(), rank_,
      [](const PairTraffic& relayed, uint32_t rank) { return relayed.trainer < rank; });
  for (; pair != all.end() && pair->trainer == rank_; ++pair) {
    relays_.push_back({.worker = pair->worker,
                       .bytes = pair->bytes,
                       .writes = pair->writes,
                       .pieces = world_.PiecesOf(pair->bytes)});
  }
  // Each begins with another worker.
  std::rotate(
      relays_.begin(),
      std::upper_bound(relays_.begin(), relays_.end(), rank_,
                       [](uint32_t rank, const Relay& relay) { return rank < relay.worker; }),
      relays_.end());
}

// Relays as large a part of each worker's bytes as may be passed on of what trainers send.
void ReceivingRank::PassOn(const Sender& sender, absl::Span<const uint32_t> pieces) {
  if (sender.id.first == Role::kWorker) return;  // Every byte takes at most two hops.
  for (const uint32_t piece : pieces) passed_on_ += sender.pieces[piece - sender.first_piece];
  for (bool more = true; more;) {
    more = false;
    for (uint32_t r = 0; r < relays_.size(); ++r) {
      Relay& relay = relays_[r];
      const auto ready = static_cast<uint64_t>(
          static_cast<double>(relay.pieces) *
          (static_cast<double>(passed_on_) / static_cast<double>(direct_bytes_)));
      if (relay.sent >= ready) continue;
      const uint64_t i = relay.sent++;
      const auto share = [&](uint64_t all) {
        return all * (i + 1) / relay.pieces - all * i / relay.pieces;
      };
      RelayPiece(r, static_cast<uint32_t>(i), share(relay.bytes),
                 std::max<uint64_t>(1, share(relay.writes)));
      more = true;
    }
  }
}

void ReceivingRank::RelayPiece(uint32_t relay, uint32_t piece, uint64_t bytes, uint64_t writes) {
  const double copy = static_cast<double>(bytes) / world_.hardware.workers.rates.copy;
  relayers_.Run(copy, [this, worker = relays_[relay].worker, piece, bytes, writes, copy] {
    world_.Note(result_, Stage::kStage, world_.time.now() - copy, copy);
    SendPiece(worker, piece, bytes, writes);
  });
}

void ReceivingRank::SendPiece(uint32_t worker, uint32_t piece, uint64_t bytes, uint64_t writes) {
  std::vector<Port*> path;
  if (world_.carrier() == Carrier::kNics) {
    const uint32_t nics = std::max(1u, world_.fabrics.nics_per_rank(Role::kWorker));
    const uint32_t nic = next_nic_++ % nics;
    path = world_.fabrics.Path(Role::kWorker, rank_, nic, worker, nic);
  }
  auto landed = [this, worker, piece, bytes, path] {
    world_.last_landed = world_.time.now();
    world_.last_sender = {Role::kWorker, rank_};
    world_.last_worker = worker;
    world_.last_path = path;
    world_.receivers[worker]->OnPiece({Role::kWorker, rank_}, piece, bytes);
  };
  Carry(
      world_, progress_,
      {.worker = worker, .lane = worker, .bytes = bytes, .writes = writes, .path = path},
      [](double) {}, std::move(landed));
}

void ReceivingRank::Commit(const UpdateId& update) {
  schedule_.Commit(update);
  Run();
}

void ReceivingRank::Show(const UpdateId& update) {
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
