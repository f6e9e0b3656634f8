// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/tcp/tcp_fabric.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fabric/import_table.h"
#include "core/fabric/progress.h"
#include "core/fabric/region_table.h"
#include "core/fabric/tcp/frames.h"
#include "core/fabric/tcp/lane_set.h"
#include "core/fabric/tcp/tcp_lane.h"

namespace waybill {
namespace tcp {
namespace {

// A lane has room until earlier posts have so many bytes that the socket did not take.
constexpr uint64_t kMostWaitingBytes = 1 << 20;

class TcpFabric final : public Fabric {
 public:
  explicit TcpFabric(const LaneSetOptions& options) : lanes_(options) {}

  absl::Status Start() { return lanes_.Start(); }

  const Capabilities& capabilities() const override { return capabilities_; }

  // --- memory of this process ---

  absl::StatusOr<Region> Register(const MemorySpan& memory, absl::string_view name) override {
    if (memory.kind == MemoryKind::kDevice) {
      return absl::UnimplementedError(
          absl::StrCat("register \"", name, "\": the tcp fabric reaches host memory only"));
    }
    return regions_.Register(memory, name);
  }
  absl::StatusOr<Region> Allocate(uint64_t size_bytes, absl::string_view name) override {
    return regions_.Allocate(size_bytes, name);
  }

  absl::Status Release(RegionId id) override {
    WAYBILL_RETURN_IF_ERROR(Revoke(id));
    for (auto& [lane_id, lane] : lanes_.all()) {
      if (!lane.outbox.ReadsFrom(id)) continue;
      lanes_.Fail(lane_id, lane,
                  absl::FailedPreconditionError("memory that a post reads was released"));
    }
    return regions_.Release(id);
  }

  absl::Status Renew(RegionId id, Contents contents) override {
    WAYBILL_RETURN_IF_ERROR(Revoke(id));
    return regions_.Renew(id, contents);
  }

  absl::StatusOr<std::string> Describe(RegionId id) override {
    WAYBILL_ASSIGN_OR_RETURN(const OwnRegion* region, regions_.Find(id));
    return absl::StrCat(absl::Hex(region->key, absl::kZeroPad16));
  }

  absl::Status Grant(LaneId lane_id, RegionId id) override {
    WAYBILL_ASSIGN_OR_RETURN(OwnRegion * region, regions_.Find(id));
    WAYBILL_ASSIGN_OR_RETURN(TcpLane * lane, lanes_.FindConnected(lane_id));
    region->grants.insert(lane_id);
    lane->outbox.Push(
        {.kind = FrameKind::kGrant, .key = region->key, .size_bytes = region->memory.size_bytes});
    lanes_.SendSome(lane_id, *lane);
    return absl::OkStatus();
  }

  // --- memory of a peer ---

  absl::StatusOr<RemoteRegionId> Import(LaneId lane_id, absl::string_view descriptor) override {
    WAYBILL_ASSIGN_OR_RETURN(const TcpLane* lane, lanes_.FindConnected(lane_id));
    uint64_t key = 0;
    if (descriptor.size() != 16 || !absl::SimpleHexAtoi(descriptor, &key)) {
      return absl::InvalidArgumentError(absl::StrCat("import a region of ", lane->peer, ": \"",
                                                     descriptor.substr(0, 64),
                                                     "\" is not 16 hexadecimal digits"));
    }
    if (!lane->granted_by_peer.contains(key)) return NotGranted(*lane);
    return imports_.Add(lane_id, key);
  }

  absl::StatusOr<MemorySpan> Map(RemoteRegionId id) override {
    WAYBILL_RETURN_IF_ERROR(imports_.Find(id).status());
    return absl::UnimplementedError("memory of another host can't be mapped");
  }
  absl::Status EndImport(RemoteRegionId id) override { return imports_.Remove(id).status(); }

  // --- lanes ---

  absl::StatusOr<LaneId> OpenLane(absl::string_view peer, absl::string_view nic) override {
    if (!nic.empty()) {
      return absl::UnavailableError(absl::StrCat("open a lane to ", peer, " on \"", nic,
                                                 "\": the tcp fabric has no NICs to choose from"));
    }
    return lanes_.Open(peer);
  }
  absl::StatusOr<std::string> LaneAddress(LaneId id) const override {
    WAYBILL_ASSIGN_OR_RETURN(const TcpLane* lane, lanes_.Find(id));
    return ToString(lane->own_address);
  }
  absl::Status ConnectLane(LaneId id, absl::string_view peer_address) override {
    return lanes_.Connect(id, peer_address);
  }
  absl::Status CloseLane(LaneId id) override {
    regions_.ForgetLane(id);
    imports_.ForgetLane(id);
    return lanes_.Close(id);
  }
  bool CopiesPosts(LaneId /*lane*/) const override { return true; }
  bool HasRoom(LaneId id) const override {
    const absl::StatusOr<const TcpLane*> lane = lanes_.Find(id);
    return !lane.ok() || (*lane)->outbox.waiting_bytes() < kMostWaitingBytes;
  }
  absl::Status LaneStatus(LaneId id) const override {
    WAYBILL_ASSIGN_OR_RETURN(const TcpLane* lane, lanes_.Find(id));
    return lane->status;
  }
  std::string DescribeLane(LaneId id) const override {
    const absl::StatusOr<const TcpLane*> lane = lanes_.Find(id);
    if (!lane.ok()) return "tcp";
    const std::string from = net::ToString((*lane)->own_address.listener);
    return absl::StrCat(
        "tcp: ", from, " to ",
        (*lane)->peer_address ? net::ToString((*lane)->peer_address->listener) : (*lane)->peer);
  }

  // --- data ---

  absl::Status Post(LaneId id, absl::Span<const Write> writes, std::optional<uint32_t> immediate,
                    uint64_t token) override {
    WAYBILL_ASSIGN_OR_RETURN(TcpLane * lane, lanes_.FindConnected(id));
    if (lane->tokens.size() >= capabilities_.max_outstanding_posts) {
      return absl::ResourceExhaustedError(
          absl::StrCat(lane->tokens.size(), " posts outstanding to ", lane->peer));
    }
    const uint16_t end = kEndsPost | (immediate ? kHasImmediate : 0);
    if (writes.empty()) {
      lane->outbox.Push({FrameKind::kEmptyPost, end, immediate.value_or(0)});
    }
    // A post that is refused posts nothing.
    const size_t before = lane->outbox.size();
    for (size_t i = 0; i < writes.size(); ++i) {
      const bool is_last = i + 1 == writes.size();
      absl::Status status = Push(id, *lane, writes[i], is_last ? end : 0, immediate.value_or(0));
      if (!status.ok()) {
        lane->outbox.Truncate(before);
        return status;
      }
    }
    lane->tokens.PushBack(token);
    lanes_.SendSome(id, *lane);
    return absl::OkStatus();
  }

  absl::Status Signal(LaneId id, uint32_t immediate) override {
    WAYBILL_ASSIGN_OR_RETURN(TcpLane * lane, lanes_.FindConnected(id));
    lane->outbox.Push({.kind = FrameKind::kImmediate, .immediate = immediate});
    lanes_.SendSome(id, *lane);
    return absl::OkStatus();
  }

  void Poll(std::vector<FabricEvent>& events) override {
    lanes_.TakeEvents();
    // Those that were queued when it began, once each: who has more to do is behind the others.
    // It ends with the first event, so that whoever handles it finds the bytes in the cache.
    for (size_t turns = lanes_.turns(); turns > 0 && lanes_.events.empty(); --turns) {
      const std::optional<LaneId> id = lanes_.TakeTurn();
      if (!id) break;
      TakeTurn(*id);
    }
    HandOut(lanes_.events, events);
  }

  void Wait(absl::Time deadline) override {
    if (!lanes_.HasWork()) lanes_.loop().Wait(deadline);
  }
  void Wake() override { lanes_.loop().Wake(); }
  int wait_descriptor() const override { return lanes_.descriptor(); }
  bool ArmWait() override { return !lanes_.HasWork(); }

  std::vector<FabricCount> Counts() const override {
    const TrafficCounts& traffic = lanes_.counts;
    const DoorwayCounts& door = lanes_.doorway_counts();
    return {{"sent_bytes", traffic.sent_bytes},       {"received_bytes", traffic.received_bytes},
            {"send_calls", traffic.send_calls},       {"receive_calls", traffic.receive_calls},
            {"setting_calls", traffic.setting_calls}, {"connected_lanes", traffic.connected_lanes},
            {"failed_lanes", traffic.failed_lanes},   {"refused_writes", traffic.refused_writes},
            {"accepted_sockets", door.accepted},      {"refused_strangers", door.refused},
            {"silent_strangers", door.silent}};
  }

 private:
  absl::Status NotGranted(const TcpLane& lane) const {
    return absl::FailedPreconditionError(
        absl::StrCat("a region of ", lane.peer,
                     " is not granted on this lane, or was renewed since it was described"));
  }

  absl::Status Push(LaneId id, TcpLane& lane, const Write& write, uint16_t flags,
                    uint32_t immediate) {
    WAYBILL_ASSIGN_OR_RETURN(const uint64_t* key, imports_.FindOn(id, write.destination));
    if (!lane.granted_by_peer.contains(*key)) return NotGranted(lane);
    if (write.size_bytes > kMaxWriteBytes) {
      return absl::InvalidArgumentError(absl::StrCat("write of ", write.size_bytes, " bytes to ",
                                                     lane.peer, ", at most ", kMaxWriteBytes));
    }
    WAYBILL_ASSIGN_OR_RETURN(const std::byte* source, regions_.FindSource(write));
    lane.outbox.Push({FrameKind::kWrite, flags, immediate, *key, write.destination_offset_bytes,
                      write.size_bytes},
                     source, write.source);
    return absl::OkStatus();
  }

  // Tells those to whom the region is granted that it is theirs no more. What is being received
  // into it is not stored any further.
  absl::Status Revoke(RegionId id) {
    WAYBILL_ASSIGN_OR_RETURN(const OwnRegion* region, regions_.Find(id));
    for (auto& [lane_id, lane] : lanes_.all()) {
      if (lane.inbox.Awaits(id)) {
        lanes_.Refuse(lane_id, lane,
                      absl::PermissionDeniedError(absl::StrCat(
                          "\"", region->name, "\" was renewed or released during a write to it")));
      } else if (lane.stage == TcpLane::Stage::kConnected && region->grants.contains(lane_id)) {
        lane.outbox.Push({.kind = FrameKind::kRevoke, .key = region->key});
        lanes_.SendSome(lane_id, lane);
      }
    }
    return absl::OkStatus();
  }

  // --- a lane's turn ---

  void TakeTurn(LaneId id) {
    TcpLane& lane = **lanes_.Find(id);
    if (lane.is_readable) ReceiveSome(id, lane);
    if (lane.stage != TcpLane::Stage::kConnected) return;
    lanes_.SendSome(id, lane);
    if (lane.is_readable) lanes_.Enqueue(id, lane);
  }

  void ReceiveSome(LaneId id, TcpLane& lane) {
    int64_t allowance = LaneSet::kTurnBytes;
    while (lane.stage != TcpLane::Stage::kDead) {
      const absl::StatusOr<Inbox::Step> step =
          lane.inbox.Next(lane.socket.get(), allowance, lanes_.counts.receive_calls);
      if (!step.ok()) {
        lanes_.Fail(id, lane, lane.lost.ok() ? step.status() : lane.lost);
      } else if (*step == Inbox::Step::kFrame || *step == Inbox::Step::kLanded) {
        absl::Status status =
            *step == Inbox::Step::kFrame ? TakeFrame(id, lane) : TakeLanded(id, lane);
        if (!status.ok()) lanes_.Refuse(id, lane, std::move(status));
      } else if (*step == Inbox::Step::kPaused) {
        break;
      } else if (!std::exchange(lane.has_ended, false)) {  // Else the end comes with the next look.
        lane.is_readable = false;
        lanes_.WakeWhenWorthIt(lane);
        if (!lane.lost.ok()) lanes_.Fail(id, lane, lane.lost);
        break;
      }
    }
    lanes_.counts.received_bytes += static_cast<uint64_t>(LaneSet::kTurnBytes - allowance);
  }

  absl::Status TakeFrame(LaneId id, TcpLane& lane) {
    const Frame& frame = lane.inbox.frame();
    if ((lane.stage == TcpLane::Stage::kGreeting) != (frame.kind == FrameKind::kWelcome)) {
      return absl::DataLossError("a welcome that is not the first frame, or none");
    }
    switch (frame.kind) {
      case FrameKind::kWelcome:
        lanes_.Connected(id, lane);
        return absl::OkStatus();
      case FrameKind::kGrant:
        lane.granted_by_peer[frame.key] = frame.size_bytes;
        return absl::OkStatus();
      case FrameKind::kRevoke:
        lane.granted_by_peer.erase(frame.key);
        return absl::OkStatus();
      case FrameKind::kWrite:
        return BeginWrite(id, lane, frame);
      case FrameKind::kEmptyPost:
        EndWrites(id, lane, frame);
        return absl::OkStatus();
      case FrameKind::kImmediate:
        lanes_.events.push_back({FabricEvent::Kind::kImmediate, id, 0, frame.immediate});
        return absl::OkStatus();
      case FrameKind::kDone:
        return TakeDone(id, lane, frame.size_bytes);
      case FrameKind::kRefused:
        if (frame.size_bytes > lane.refusal_by_peer.size() || frame.immediate == 0) {
          return absl::DataLossError("a refusal without a code, or with too long a text");
        }
        lane.inbox.Await(reinterpret_cast<std::byte*>(lane.refusal_by_peer.data()),
                         frame.size_bytes);
        lane.inbox.Land();
        return absl::OkStatus();
    }
    return absl::DataLossError(
        absl::StrCat("a frame of an unknown kind, ", static_cast<uint32_t>(frame.kind)));
  }

  absl::Status TakeLanded(LaneId id, TcpLane& lane) {
    const Frame& frame = lane.inbox.frame();
    if (frame.kind == FrameKind::kRefused) {
      lanes_.Fail(id, lane,
                  absl::Status(static_cast<absl::StatusCode>(frame.immediate),
                               absl::string_view(lane.refusal_by_peer.data(), frame.size_bytes)));
      return absl::OkStatus();
    }
    EndWrites(id, lane, frame);
    return absl::OkStatus();
  }

  absl::Status BeginWrite(LaneId id, TcpLane& lane, const Frame& frame) {
    if (frame.size_bytes > kMaxWriteBytes) {
      return absl::OutOfRangeError(
          absl::StrCat("write of ", frame.size_bytes, " bytes, at most ", kMaxWriteBytes));
    }
    WAYBILL_ASSIGN_OR_RETURN(
        const Destination to,
        regions_.FindDestination(id, frame.key, frame.offset_bytes, frame.size_bytes));
    lane.inbox.Await(to.data, frame.size_bytes, to.region);
    if (AreBytesBehind(frame, lane.inbox.awaited_count())) lane.inbox.Land();
    return absl::OkStatus();
  }

  // `frame`: the last one of what has landed.
  void EndWrites(LaneId id, TcpLane& lane, const Frame& frame) {
    if ((frame.flags & kHasImmediate) != 0) {
      lanes_.events.push_back({FabricEvent::Kind::kImmediate, id, 0, frame.immediate});
    }
    if ((frame.flags & kEndsPost) != 0) lane.outbox.TellDone(++lane.landed);
  }

  absl::Status TakeDone(LaneId id, TcpLane& lane, uint64_t done) {
    if (done < lane.completed || done - lane.completed > lane.tokens.size()) {
      return absl::DataLossError(absl::StrCat(done, " posts are said to be done, of ",
                                              lane.completed + lane.tokens.size()));
    }
    for (; lane.completed < done; ++lane.completed) {
      lanes_.events.push_back({FabricEvent::Kind::kComplete, id, lane.tokens.PopFront()});
    }
    return absl::OkStatus();
  }

  const Capabilities capabilities_ = {.name = "tcp",
                                      .can_map = false,
                                      .source_must_be_granted = false,
                                      .max_write_bytes = kMaxWriteBytes,
                                      .max_outstanding_posts = 256};
  RegionTable regions_{RegionTable::Renewal::kKeys};
  LaneSet lanes_;
  ImportTable<uint64_t> imports_;  // Each by its key.
};

}  // namespace
}  // namespace tcp

absl::StatusOr<std::unique_ptr<Fabric>> MakeTcpFabric(const TcpOptions& options) {
  const int64_t dead_peer_seconds =
      std::clamp<int64_t>(absl::ToInt64Seconds(options.dead_peer_timeout), 1, 3600);
  auto fabric = std::make_unique<tcp::TcpFabric>(
      tcp::LaneSetOptions{.listener = {.host = options.host},
                          .connect_timeout = options.connect_timeout,
                          .dead_peer_seconds = static_cast<int>(dead_peer_seconds),
                          .stranger_timeout = options.stranger_timeout,
                          .most_strangers = options.most_strangers});
  WAYBILL_RETURN_IF_ERROR(fabric->Start());
  return fabric;
}

}  // namespace waybill
