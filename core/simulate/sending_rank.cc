// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "core/plan/chunks.h"
#include "core/simulate/changed_part.h"
#include "core/simulate/ranks.h"

namespace waybill::simulate {
namespace {

SessionOptions OptionsOf(const World& world, uint32_t rank, EncodedManifest manifest,
                         const proto::Nics& nics) {
  SessionOptions options;
  options.id = {Role::kTrainer, rank};
  options.job = "simulated";
  options.world = world.traffic.trainers();
  options.incarnation = 2 * rank + 1;
  options.manifest = std::move(manifest);
  options.nics = nics;
  return options;
}

// The number in a NIC's name, which simulate.cc gave it; 0 for any NIC.
uint32_t NumberOf(absl::string_view nic) {
  uint32_t number = 0;
  return absl::SimpleAtoi(nic.substr(std::min<size_t>(1, nic.size())), &number) ? number : 0;
}

}  // namespace

SendingRank::SendingRank(World* world, RankResult* result, EncodedManifest manifest,
                         const proto::Nics& nics)
    : world_(*world),
      result_(*result),
      rank_(result->id.rank),
      session_(OptionsOf(*world, rank_, std::move(manifest), nics), this),
      alarm_(&world->time,
             [this] {
               if (world_.time.time() >= session_.next_deadline())
                 session_.OnTime(world_.time.time());
               Call();
             }),
      stagers_(world->CoresOf(Role::kTrainer, rank_), world->hardware.trainers.working_threads(),
               world->fabrics.slowdown(Role::kTrainer, rank_)),
      progress_(world->CoresOf(Role::kTrainer, rank_), 1,
                world->fabrics.slowdown(Role::kTrainer, rank_)),
      slots_(static_cast<uint32_t>(world->hardware.trainers.ring_bytes / kChunkBytes)),
      schedule_(&slots_) {}

void SendingRank::Call() { alarm_.Set(session_.next_deadline()); }

void SendingRank::Join() {
  session_.Join(1, world_.time.time() + absl::Hours(1), world_.time.time());
  Call();
}

void SendingRank::Publish() {
  if (!world_.images) return PublishNow();
  const double seconds =
      static_cast<double>(result_.held_bytes) / world_.hardware.trainers.rates.copy;
  const uint32_t threads = world_.hardware.trainers.working_threads();
  to_copy_ = threads;
  for (uint32_t i = 0; i < threads; ++i) {
    const double share = seconds / threads;
    stagers_.Run(share, [this, share] {
      world_.Note(result_, Stage::kStage, world_.time.now() - share, share);
      world_.last_copied = world_.time.now();
      if (--to_copy_ == 0) PublishNow();
    });
  }
}

void SendingRank::PublishNow() {
  session_.Publish(2,
                   {.version = 1,
                    .deadline = world_.time.time() + absl::Hours(10),
                    .digests_off = !world_.digests,
                    .until_committed = true},
                   world_.time.time());
  Call();
}

void SendingRank::OnOpen() {
  session_.OnStreamOpen(world_.time.time());
  Call();
}

void SendingRank::OnMessage(const proto::ControllerMessage& message) {
  session_.OnMessage(message, world_.time.time());
  Call();
}

void SendingRank::OnClose() {
  session_.OnStreamEnd(absl::UnavailableError("the controller ended the stream"),
                       world_.time.time());
  Call();
}

void SendingRank::Tell(Notice notice) {
  if (!notice.status.ok()) world_.Fail(notice.status);
  if (notice.kind == Notice::Kind::kJoined) ++world_.joined;
}

// --- the term ---

absl::StatusOr<proto::Offers> SendingRank::SetPlan(TermPlan plan) {
  group_ = plan.group;
  proto::Offers offers;
  peers_.clear();
  pieces_.clear();
  std::vector<uint32_t> lane_counts;
  uint32_t lanes = 0;
  // A NIC's lanes progress together, packet by packet. In a simulation by pieces, all trainers
  // would begin with worker 0 and reach the last one late, so each begins with another worker.
  std::vector<PeerLanes>& all = plan.lanes.peers;
  std::rotate(all.begin(), all.begin() + rank_ * all.size() / world_.traffic.trainers(), all.end());
  for (const PeerLanes& peer_lanes : all) {
    const PairTraffic* pair = world_.traffic.Find(rank_, peer_lanes.peer);
    if (pair == nullptr) {
      return absl::InternalError("the skeleton's lanes are not those of the traffic");
    }
    Peer& peer = peers_.emplace_back();
    peer.traffic = *pair;
    peer.first_lane = lanes;
    peer.paths = peer_lanes.lanes;
    for (const LanePath& path : peer_lanes.lanes) {
      Lane& lane = peer.lanes.emplace_back();
      lane.sender_nic = NumberOf(path.sender_nic);
      lane.receiver_nic = NumberOf(path.receiver_nic);
      if (world_.carrier() == Carrier::kNics) {
        lane.path = world_.fabrics.Path(Role::kTrainer, rank_, lane.sender_nic, pair->worker,
                                        lane.receiver_nic);
      }
      proto::Lane* offer = offers.add_lanes();
      offer->set_peer(pair->worker);
      offer->set_address("simulated");
    }
    lanes += static_cast<uint32_t>(peer.lanes.size());
    lane_counts.push_back(static_cast<uint32_t>(peer.lanes.size()));
    CutIntoPieces(static_cast<uint32_t>(peers_.size()) - 1);
  }
  schedule_.SetPeers(lane_counts, static_cast<uint32_t>(pieces_.size()));
  return offers;
}

absl::Status SendingRank::Connect(const std::string& group, const proto::Connect&) {
  world_.time.After(0, [this, group] {
    session_.OnConnected(group, {});
    Call();
  });
  return absl::OkStatus();
}

// --- pieces ---

double SendingRank::StageSeconds(const PairTraffic& traffic, SendWay way) const {
  const WorkRates& rates = world_.hardware.trainers.rates;
  const uint64_t copied = way == SendWay::kStaged ? traffic.packed_read : traffic.copied_read;
  return static_cast<double>(copied) / rates.copy +
         static_cast<double>(traffic.transposed_read) / rates.transpose +
         static_cast<double>(traffic.cast_read) / rates.cast +
         static_cast<double>(traffic.quantised_read) / rates.quantise;
}

// Reads both versions, converts what is not sent as it is, and digests all of it.
double SendingRank::EncodeSeconds(const PairTraffic& traffic) const {
  const WorkRates& rates = world_.hardware.trainers.rates;
  const auto bytes = static_cast<double>(traffic.bytes);
  return bytes / rates.compare + bytes / kElementBytes * *world_.changed * kEncodeSeconds +
         bytes / rates.digest + static_cast<double>(traffic.transposed_read) / rates.transpose +
         static_cast<double>(traffic.cast_read) / rates.cast;
}

void SendingRank::CutIntoPieces(uint32_t peer) {
  peers_[peer].first_piece = static_cast<uint32_t>(pieces_.size());
  const PairTraffic& traffic = peers_[peer].traffic;
  const Machine& machine = world_.hardware.trainers;
  if (world_.carrier() == Carrier::kMapped) {
    return AddPieces(peer, SendWay::kStored, traffic.bytes, 0,
                     StageSeconds(traffic, SendWay::kStored));
  }
  if (world_.Encodes(traffic)) {
    return AddPieces(peer, SendWay::kStaged, traffic.bytes, 1, EncodeSeconds(traffic));
  }
  if (!world_.sends_from_tensors()) {
    // Every byte crosses PCIe into a slot; kernels work meanwhile.
    const double seconds = std::max(StageSeconds(traffic, SendWay::kStored),
                                    static_cast<double>(traffic.bytes) / machine.pcie);
    return AddPieces(peer, SendWay::kStaged, traffic.bytes, traffic.writes, seconds);
  }
  const uint64_t staged_writes =
      traffic.bytes == 0 ? 0 : traffic.writes * traffic.staged_bytes / traffic.bytes;
  AddPieces(peer, SendWay::kStaged, traffic.staged_bytes, staged_writes,
            StageSeconds(traffic, SendWay::kStaged));
  AddPieces(peer, SendWay::kDirect, traffic.bytes - traffic.staged_bytes,
            traffic.writes - staged_writes, 0);
}

void SendingRank::AddPieces(uint32_t peer, SendWay way, uint64_t bytes, uint64_t writes,
                            double seconds) {
  const uint64_t count = world_.PiecesOf(bytes);
  for (uint64_t i = 0; i < count; ++i) {
    const auto share = [&](uint64_t all) { return all * (i + 1) / count - all * i / count; };
    const uint64_t size = share(bytes);
    pieces_.push_back(
        {.peer = peer,
         .bytes = size,
         .carried_bytes = world_.CarriedBytes(peers_[peer].traffic, size),
         .writes = std::max<uint64_t>(1, share(writes)),
         .stage_seconds = seconds / static_cast<double>(count),
         .digest_seconds = static_cast<double>(size) / world_.hardware.trainers.rates.digest,
         .way = way});
  }
}

// --- the update ---

absl::Status SendingRank::Start(const std::string&, const UpdateId& update, const PublishCommand&,
                                const proto::Start& start) {
  update_ = update;
  std::vector<TakesPart> parts(peers_.size(), TakesPart::kNo);
  for (const proto::Target& target : start.targets()) {
    for (size_t p = 0; p < peers_.size(); ++p) {
      if (peers_[p].traffic.worker == target.worker()) parts[p] = TakesPart::kYes;
    }
  }
  std::vector<Payload> payloads;
  for (size_t first = 0; first < pieces_.size();) {
    const uint32_t p = pieces_[first].peer;
    Peer& peer = peers_[p];
    std::vector<Chunk> chunks;
    size_t last = first;
    for (; last < pieces_.size() && pieces_[last].peer == p; ++last) {
      chunks.push_back({.size_bytes = pieces_[last].bytes});
    }
    const std::vector<uint32_t> lanes = ShareOut(chunks, peer.paths);
    for (size_t i = first; i < last; ++i) {
      const bool apart = world_.digests && pieces_[i].way == SendWay::kDirect;
      payloads.push_back({.id = static_cast<uint32_t>(i),
                          .lane = {p, lanes[i - first]},
                          .size_bytes = pieces_[i].bytes,
                          .way = pieces_[i].way,
                          .digested_apart = apart});
      if (apart) ++peer.to_digest;
    }
    first = last;
  }
  world_.pieces += payloads.size();
  schedule_.Begin(payloads, parts, FinishRule::kAtOnce);
  // Maxima of blocks that shards cut take a message to the other trainer for each step.
  const double trade = world_.traffic.maxima_steps * 2 * world_.hardware.network.latency;
  world_.time.After(trade, [this] {
    schedule_.OnScalesKnown();
    schedule_.OnTradeQuiet();
    Run();
    DigestApart();
  });
  return absl::OkStatus();
}

// What is sent from the tensors is digested behind all that the network waits for.
void SendingRank::DigestApart() {
  if (!world_.digests) return;
  for (const Piece& piece : pieces_) {
    if (piece.way != SendWay::kDirect) continue;
    const double begin = world_.time.now();
    stagers_.RunLast(piece.digest_seconds, [this, p = piece.peer, begin] {
      world_.Note(result_, Stage::kStage, begin, 0);
      if (--peers_[p].to_digest > 0) return;
      schedule_.OnDigested(p);
      Run();
    });
  }
}

void SendingRank::Run() {
  if (std::exchange(running_, true)) {
    again_ = true;
    return;
  }
  SendCommand command;
  do {
    again_ = false;
    while (schedule_.Next(command)) Execute(command);
  } while (again_);
  running_ = false;
}

void SendingRank::Work(double seconds, Threads::Done done) {
  stagers_.Run(seconds, [this, seconds, done = std::move(done)] {
    world_.Note(result_, Stage::kStage, world_.time.now() - seconds, seconds);
    done();
    Run();
  });
}

void SendingRank::Execute(const SendCommand& command) {
  using Kind = SendCommand::Kind;
  switch (command.kind) {
    case Kind::kStore: {
      return Work(pieces_[command.payload].stage_seconds, [this, id = command.payload] {
        Deliver(id);
        schedule_.OnStored(pieces_[id].peer, 1);
      });
    }
    case Kind::kStage:
      return Work(pieces_[command.payload].stage_seconds,
                  [this, slot = command.slot] { schedule_.OnStaged(slot); });
    case Kind::kPost:
      return Post(command);
    case Kind::kEndLane: {
      schedule_.OnAccepted(command);
      const Peer& peer = peers_[command.lane.peer];
      const uint64_t ledger = command.lane.index == 0 ? peer.traffic.routes * 24 : 0;
      Carry(command.lane, ledger + 64, 2, [this, command, worker = peer.traffic.worker] {
        world_.receivers[worker]->OnLaneEnd({Role::kTrainer, rank_}, command.lane.index,
                                            update_.sequence);
        schedule_.OnComplete(command.lane, SendSchedule::kNoSlot);
        Run();
      });
      return;
    }
    case Kind::kSent:
      result_.ring_bytes = slots_.high_water() * kChunkBytes;
      world_.last_sent = std::max(world_.last_sent, world_.time.now());
      world_.time.After(0, [this] {
        session_.OnSent(group_, update_, world_.time.time());
        Call();
      });
      return;
    case Kind::kClose:
    case Kind::kPeerDone:
    case Kind::kCheck:
    case Kind::kQuiet:
      return;
  }
}

void SendingRank::Post(const SendCommand& command) {
  schedule_.OnAccepted(command);
  const Piece& piece = pieces_[command.payload];
  Carry(command.lane, piece.carried_bytes, piece.writes, [this, command] {
    Deliver(command.payload);
    schedule_.OnComplete(command.lane, command.slot);
    Run();
  });
}

void SendingRank::Deliver(uint32_t id) {
  const Peer& peer = peers_[pieces_[id].peer];
  world_.receivers[peer.traffic.worker]->OnPiece({Role::kTrainer, rank_}, id - peer.first_piece,
                                                 pieces_[id].bytes);
}

// Posts writes, and takes them to the worker.
void SendingRank::Carry(SendLane lane, uint64_t bytes, uint64_t writes,
                        std::function<void()> landed) {
  const double begin = world_.time.now();
  if (wire_begin_ < 0) wire_begin_ = begin;
  const Peer& peer = peers_[lane.peer];
  const bool large = bytes >= (64 << 10);
  auto arrive = [this, worker = peer.traffic.worker, large, landed = std::move(landed),
                 path = peer.lanes[lane.index].path] {
    world_.Note(result_, Stage::kWire, wire_begin_, 0);
    if (large) {
      world_.last_landed = world_.time.now();
      world_.last_sender = {Role::kTrainer, rank_};
      world_.last_worker = worker;
      world_.last_path = path;
    }
    landed();
  };
  const auto posted = [this](double seconds) {
    world_.Note(result_, Stage::kPost, world_.time.now() - seconds, seconds);
  };
  simulate::Carry(world_, progress_,
                  {.worker = peer.traffic.worker,
                   .lane = peer.first_lane + lane.index,
                   .bytes = bytes,
                   .writes = writes,
                   .path = peer.lanes[lane.index].path},
                  posted, std::move(arrive));
}

void SendingRank::Abort(const std::string& group, const UpdateId& update) {
  world_.Fail(absl::AbortedError("the simulated update was aborted"));
  world_.time.After(0, [this, group, update] {
    session_.OnStopped(group, update, world_.time.time());
    Call();
  });
}

void SendingRank::StopNow(const std::string&) {
  world_.Fail(absl::AbortedError("the simulated update was stopped"));
}

}  // namespace waybill::simulate
