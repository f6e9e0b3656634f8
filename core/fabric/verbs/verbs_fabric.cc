// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/verbs_fabric.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/fabric/polled_clock.h"
#include "core/fabric/progress.h"
#include "core/fabric/verbs/bounce_ring.h"
#include "core/fabric/verbs/connector.h"
#include "core/fabric/verbs/descriptors.h"
#include "core/fabric/verbs/imports.h"
#include "core/fabric/verbs/lane_table.h"
#include "core/fabric/verbs/libibverbs.h"
#include "core/fabric/verbs/nic_set.h"
#include "core/fabric/verbs/probe_memory.h"
#include "core/fabric/verbs/regions.h"
#include "core/fabric/verbs/verbs_lane.h"
#include "core/fabric/waker.h"
#include "core/net/rendezvous.h"

namespace waybill {
namespace verbs {
namespace {

// They cost a system call: while completions keep coming, they are looked at this rarely.
constexpr uint32_t kPollsBetweenDescriptors = 16;
constexpr size_t kMostGrantBytes = 60'000;
// A NIC that works answers within microseconds.
constexpr absl::Duration kReadBackTimeout = absl::Seconds(2);

class VerbsFabric final : public Fabric {
 public:
  VerbsFabric(const VerbsOptions& options, Verbs* verbs, std::unique_ptr<NicSet> nics,
              std::string why_nics)
      : options_(options),
        verbs_(*verbs),
        nics_(std::move(nics)),
        why_nics_(std::move(why_nics)),
        settings_{.limits = {.depth = options.queue_depth,
                             .chain = options.chain,
                             .posts = capabilities_.max_outstanding_posts},
                  .queue_pair = {.receives = capabilities_.max_outstanding_posts,
                                 .ack_timeout = options.ack_timeout,
                                 .traffic_class = options.traffic_class},
                  .bounce = options.bounce},
        regions_(verbs, nics_->devices(), settings_.bounce) {}

  ~VerbsFabric() override {
    for (const auto& [id, open] : lanes_) open.nic->connector->Forget(id);
    for (const auto& used : nics_->nics()) used->connector = nullptr;
  }

  absl::Status Start() {
    WAYBILL_RETURN_IF_ERROR(descriptors_.Start(options_.dead_peer_timeout / 4));
    WAYBILL_RETURN_IF_ERROR(connected_.Start());
    WAYBILL_RETURN_IF_ERROR(descriptors_.Watch(connected_.fd()));
    for (Device* device : nics_->devices()) {
      WAYBILL_RETURN_IF_ERROR(descriptors_.Watch(device->context()->async_fd));
    }
    for (const auto& used : nics_->nics()) {
      WAYBILL_RETURN_IF_ERROR(descriptors_.Watch(used->queues->fd()));
      if (options_.log) options_.log(used->nic.Describe());
    }
    WAYBILL_ASSIGN_OR_RETURN(rendezvous_,
                             net::Rendezvous::Create(options_.host, descriptors_.epoll(),
                                                     options_.connect_timeout, clock_.Look()));
    return absl::OkStatus();
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  absl::StatusOr<Region> Register(const MemorySpan& memory, absl::string_view name) override {
    if (memory.needs_read_back) WAYBILL_RETURN_IF_ERROR(MakeReaders());
    return regions_.Register(memory, name);
  }
  absl::StatusOr<Region> RegisterSource(const MemorySpan& memory, absl::string_view name) override {
    return regions_.RegisterSource(memory, name);
  }
  absl::StatusOr<Region> Allocate(uint64_t size_bytes, absl::string_view name) override {
    return regions_.Allocate(size_bytes, name);
  }
  absl::Status Release(RegionId region) override {
    Revoke(region);
    return regions_.Release(region);
  }
  absl::Status Renew(RegionId region, Contents contents) override {
    Revoke(region);
    return regions_.Renew(region, contents);
  }

  absl::StatusOr<std::string> Describe(RegionId id) override {
    WAYBILL_ASSIGN_OR_RETURN(const OwnRegion* region, regions_.Find(id));
    return DescribeKey(region->key);
  }

  // The key goes to the peer of this lane only, over the connection beside it.
  absl::Status Grant(LaneId lane_id, RegionId id) override {
    WAYBILL_ASSIGN_OR_RETURN(OwnRegion * region, regions_.FindUsable(id));
    WAYBILL_ASSIGN_OR_RETURN(VerbsLane * lane, lanes_.FindUsable(lane_id));
    if (region->bounced) WAYBILL_RETURN_IF_ERROR(AnnounceRing(*lane));
    region->grants.insert(lane_id);
    const std::string grant = VerbsLane::GrantOf(*region, lanes_.DeviceOf(*lane));
    if (lane->pending_grants.size() + grant.size() > kMostGrantBytes) SendGrants(*lane);
    if (lane->pending_grants.empty()) {
      ++lane->grants_under_way;
      granting_.push_back(lane->id());
    }
    lane->pending_grants += grant;
    return absl::OkStatus();
  }

  absl::StatusOr<RemoteRegionId> Import(LaneId lane_id, absl::string_view descriptor) override {
    WAYBILL_ASSIGN_OR_RETURN(const VerbsLane* lane, lanes_.FindUsable(lane_id));
    return imports_.Add(*lane, descriptor);
  }

  absl::StatusOr<MemorySpan> Map(RemoteRegionId id) override {
    WAYBILL_RETURN_IF_ERROR(imports_.Check(id));
    return absl::UnimplementedError("memory behind a NIC cannot be mapped");
  }

  absl::Status EndImport(RemoteRegionId id) override { return imports_.End(id); }

  std::vector<FabricNic> Nics() const override { return nics_->Usable(); }

  absl::StatusOr<LaneId> OpenLane(absl::string_view peer, absl::string_view nic_name) override {
    WAYBILL_ASSIGN_OR_RETURN(UsedNic * nic, nics_->Choose(nic_name));
    const uint32_t id = ++last_lane_;
    WAYBILL_ASSIGN_OR_RETURN(
        std::unique_ptr<VerbsLane> lane,
        VerbsLane::Create(&verbs_, id, peer, &nic->nic, nic->queues.get(), settings_, &sent_));
    // Before anybody counts on the lane.
    if (!regions_.why_bounced().empty() || bounce_peers_.contains(lane->peer())) {
      WAYBILL_RETURN_IF_ERROR(lane->MakeRing());
    }
    WAYBILL_ASSIGN_OR_RETURN(lane->rendezvous, rendezvous_->Open(id));
    lanes_.Add(std::move(lane), nic);
    ++nic->unproved;
    return LaneId{id};
  }

  absl::StatusOr<std::string> LaneAddress(LaneId id) const override {
    WAYBILL_ASSIGN_OR_RETURN(const VerbsLane* lane, lanes_.Find(id));
    return ToString(lane->Address());
  }

  absl::Status ConnectLane(LaneId id, absl::string_view peer_address) override {
    WAYBILL_ASSIGN_OR_RETURN(VerbsLane * lane, lanes_.Find(id));
    WAYBILL_ASSIGN_OR_RETURN(verbs::LaneAddress address, ParseLaneAddress(peer_address));
    if (lane->peer_address) {
      return absl::FailedPreconditionError(
          absl::StrCat("connect to ", lane->peer(), ": this lane has a peer"));
    }
    WAYBILL_RETURN_IF_ERROR(lane->status);
    auto connect = lane->PlanConnect(address);
    lane->peer_address = std::move(address);
    if (connect.ok()) {
      // Each NIC by a thread of its own: the system looks up the peer's address, and a neighbour
      // that does not answer takes seconds.
      UsedNic& nic = lanes_.NicOf(*lane);
      nic.connector->Connect(
          lane->id(),
          [connect = *std::move(connect), probes = nic.probes.get(), lanes = nic.unproved] {
            probes->Prepare(lanes);
            return connect();
          },
          [this] { connected_.Wake(); });
    } else {
      Fail(*lane, connect.status());
    }
    return absl::OkStatus();
  }

  absl::Status ReadBack(LaneId id) override {
    WAYBILL_ASSIGN_OR_RETURN(const VerbsLane* lane, lanes_.Find(id));
    UsedNic& used = lanes_.NicOf(*lane);
    if (lane->last_arrival <= used.read_back) return absl::OkStatus();
    WAYBILL_RETURN_IF_ERROR(
        While(absl::StrCat("read back what ", used.nic.name(), " has written"), ReadBackBy(used)));
    used.read_back = used.arrived;
    return absl::OkStatus();
  }

  absl::Status CloseLane(LaneId id) override {
    WAYBILL_ASSIGN_OR_RETURN(VerbsLane * lane, lanes_.Find(id));
    Forget(*lane);
    Quiesce(*lane);
    lanes_.Erase(*lane);
    regions_.ForgetLane(id);
    imports_.ForgetLane(id);
    std::erase_if(events_, [id](const FabricEvent& e) { return e.lane == id; });
    return absl::OkStatus();
  }

  absl::Status LaneStatus(LaneId id) const override {
    WAYBILL_ASSIGN_OR_RETURN(const VerbsLane* lane, lanes_.Find(id));
    return lane->status;
  }

  std::string DescribeLane(LaneId id) const override {
    const absl::StatusOr<VerbsLane*> lane = lanes_.Find(id);
    if (!lane.ok()) return "closed";
    const absl::string_view why = regions_.why_bounced();
    const absl::string_view gpus = regions_.device_path();
    return absl::StrCat((*lane)->DescribePath(), why_nics_.empty() ? "" : "; ", why_nics_,
                        gpus.empty() ? "" : "; memory of GPUs is registered ", gpus,
                        why.empty() ? "" : "; with copies here: ", why,
                        (*lane)->sends().may_bounce() ? "; with copies at the peer" : "");
  }

  absl::Status Post(LaneId id, absl::Span<const Write> writes, std::optional<uint32_t> immediate,
                    uint64_t token) override {
    ReadRevocationsAfterPause();
    WAYBILL_ASSIGN_OR_RETURN(VerbsLane * lane, lanes_.FindUsable(id));
    if (lane->sends().full()) {
      // Without a text, and so without an allocation: callers ask again and again.
      return absl::Status(absl::StatusCode::kResourceExhausted, "");
    }
    resolved_.clear();
    const size_t device = lanes_.DeviceOf(*lane);
    for (const Write& write : writes) {
      WAYBILL_ASSIGN_OR_RETURN(const RemoteWrite resolved,
                               imports_.Resolve(*lane, device, regions_, write));
      if (resolved.copied_from != nullptr) WAYBILL_RETURN_IF_ERROR(NeedRing(*lane));
      resolved_.push_back(resolved);
    }
    lane->sends().Append(resolved_, immediate, token);
    // While others are on the way, what makes no whole chain waits for the next post, or Poll().
    FailUnless(*lane, lane->Pump(/*flush=*/lane->sends().outstanding() == 0));
    return absl::OkStatus();
  }

  absl::Status Signal(LaneId id, uint32_t) override {
    WAYBILL_RETURN_IF_ERROR(lanes_.FindUsable(id).status());
    return absl::UnimplementedError("memory behind a NIC cannot be mapped");
  }

  void Poll(std::vector<FabricEvent>& events) override {
    ReadRevocationsAfterPause();
    PumpAll();
    const bool any = PollCompletions();
    if (!any || ++polls_ >= kPollsBetweenDescriptors) PollDescriptors();
    PumpAll();
    HandOut(events_, events);
  }

  void Wait(absl::Time deadline) override { descriptors_.Wait(deadline, ArmWait()); }
  void Wake() override { descriptors_.Wake(); }
  int wait_descriptor() const override { return descriptors_.epoll(); }

  bool ArmWait() override {
    ReadRevocationsAfterPause();
    PumpAll();
    if (!events_.empty()) return false;
    for (const auto& used : nics_->nics()) {
      if (!used->queues->Arm().ok()) return false;
    }
    // Completions from before the queues were armed cause no event.
    return !PollCompletions() && events_.empty();
  }

  std::vector<FabricCount> Counts() const override {
    std::vector<FabricCount> counts = regions_.Counts();
    for (const FabricCount& count : sent_.Counts()) counts.push_back(count);
    counts.push_back({"failed_lanes", failed_lanes_});
    counts.push_back({"grant_frames", grant_frames_});
    return counts;
  }

 private:
  // Tells those to whom the region is granted that it is theirs no more.
  void Revoke(RegionId id) {
    const absl::StatusOr<OwnRegion*> region = regions_.Find(id);
    if (!region.ok()) return;
    for (const LaneId lane_id : (*region)->grants) {
      const absl::StatusOr<VerbsLane*> lane = lanes_.FindUsable(lane_id);
      if (!lane.ok()) continue;
      SendGrants(**lane);
      Sent(**lane, (*lane)->side.Send(FrameKind::kRevoke, Packed((*region)->key)));
    }
  }

  void SendGrants(VerbsLane& lane) {
    if (lane.pending_grants.empty() || !lane.status.ok()) return;
    ++grant_frames_;
    Sent(lane, lane.side.Send(FrameKind::kGrant, std::exchange(lane.pending_grants, {})));
  }

  // --- reading back ---

  // Now rather than when something has been written.
  absl::Status MakeReaders() {
    for (const auto& used : nics_->nics()) {
      if (used->nic.status.ok()) WAYBILL_RETURN_IF_ERROR(MakeReader(*used));
    }
    return absl::OkStatus();
  }

  absl::Status MakeReader(UsedNic& used) {
    if (used.reader != nullptr) return absl::OkStatus();
    WAYBILL_ASSIGN_OR_RETURN(used.reader, verbs::ReadBack::Create(&verbs_, &used.nic));
    return absl::OkStatus();
  }

  absl::Status ReadBackBy(UsedNic& used) {
    for (const auto& byte : regions_.ToReadBack(used.device_index)) {
      if (!byte) continue;
      if (used.nic.device().failed()) return absl::UnavailableError("the device has failed");
      WAYBILL_RETURN_IF_ERROR(MakeReader(used));
      absl::Status status =
          used.reader->Read(byte->address, byte->remote_key, SteadyNow() + kReadBackTimeout);
      if (status.ok()) continue;
      used.reader = nullptr;  // The next one begins anew.
      return status;
    }
    return absl::OkStatus();
  }

  // --- sending ---

  void FailUnless(VerbsLane& lane, absl::Status status) {
    if (!status.ok()) Fail(lane, std::move(status));
  }

  // A process that was stopped for long may have been given up. What it goes on with first should
  // not be writes by keys that were taken back meanwhile.
  void ReadRevocationsAfterPause() {
    const absl::Time now = SteadyNow();
    const absl::Duration pause = now - std::exchange(last_call_, now);
    if (pause >= options_.long_pause) PollDescriptors();
  }

  void PumpAll() {
    for (const uint32_t id : granting_) {
      VerbsLane* lane = lanes_.FindLive(id);
      if (lane != nullptr) SendGrants(*lane);
    }
    granting_.clear();
    for (auto& [id, open] : lanes_) {
      if (open.lane->status.ok() && open.lane->sends().has_waiting())
        FailUnless(*open.lane, open.lane->Pump(/*flush=*/true));
    }
  }

  // --- what has happened ---

  // Null where the lane is gone, or has failed by this completion.
  VerbsLane* LaneOf(const ibv_wc& done) {
    VerbsLane* lane = lanes_.FindLive(SendQueue::LaneOf(done.wr_id));
    if (lane == nullptr || done.status == IBV_WC_SUCCESS) return lane;
    if (done.status == IBV_WC_WR_FLUSH_ERR) {
      flushed_.push_back(done);  // Flushed behind the cause, or in the other queue.
    } else {
      Fail(*lane, lane->FailureOf(done));
    }
    return nullptr;
  }

  bool PollCompletions() {
    receives_.clear();
    sends_.clear();
    bool any = false;
    for (const auto& used : nics_->nics()) any = used->queues->Poll(receives_, sends_) || any;
    for (const ibv_wc& done : receives_) {
      VerbsLane* lane = LaneOf(done);
      if (lane == nullptr || !lane->CountReceive(done.wr_id)) continue;
      if (done.opcode != IBV_WC_RECV) {
        lane->last_arrival = ++lanes_.NicOf(*lane).arrived;
        const uint32_t immediate = ntohl(done.imm_data);
        if (lane->probe_came()) {
          lane->Arrived(immediate, events_);
        } else {
          TakeProbe(*lane, immediate);
        }
      } else if (absl::Status status = lane->TakePiece(regions_); !status.ok()) {
        Fail(*lane, std::move(status), FrameKind::kRefused);
      }
    }
    for (const ibv_wc& done : sends_) {
      VerbsLane* lane = LaneOf(done);
      if (lane == nullptr) continue;
      tokens_.clear();
      lane->sends().Retire(done.wr_id, tokens_);
      TellCompleted(*lane);
    }
    for (const ibv_wc& done : receives_) {
      VerbsLane* lane = lanes_.FindLive(SendQueue::LaneOf(done.wr_id));
      if (lane == nullptr) continue;
      FailUnless(*lane, lane->RefillReceives());
      if (lane->status.ok()) TellDelivered(*lane);
    }
    return any;
  }

  void TellCompleted(VerbsLane& lane) {
    for (const uint64_t token : tokens_) lane.Completed(token, events_);
    if (lane.connected()) ReturnProbe(lane);
  }

  void TellDelivered(VerbsLane& lane) {
    const std::optional<uint64_t> pieces = lane.TakeDelivered();
    if (pieces) Sent(lane, lane.side.Send(FrameKind::kDelivered, Packed(*pieces)));
  }

  // A lane without its ring is of no use. The next one to that peer has it before it is opened.
  absl::Status NeedRing(VerbsLane& lane) {
    bounce_peers_.insert(lane.peer());
    if (absl::Status status = lane.MakeRing(); !status.ok()) {
      Fail(lane, absl::UnavailableError(status.message()));
    }
    return lane.status;
  }

  absl::Status AnnounceRing(VerbsLane& lane) {
    WAYBILL_RETURN_IF_ERROR(NeedRing(lane));
    const std::optional<PeerRing> ring = lane.TakeNewsOfRing();
    if (ring) Sent(lane, lane.side.Send(FrameKind::kRing, Packed(*ring)));
    return lane.status;
  }

  void Fail(VerbsLane& lane, absl::Status status, FrameKind told = FrameKind::kGoodbye) {
    if (!lane.status.ok()) return;
    lane.status =
        WithScope(While(absl::StrCat("lane to ", lane.peer()), std::move(status)), Scope::kPeer);
    if (lane.side.open()) (void)lane.side.Send(told, lane.status.message());
    Forget(lane);
    Quiesce(lane);
    ++failed_lanes_;
    events_.push_back({.kind = FabricEvent::Kind::kFailed, .lane = LaneId{lane.id()}});
  }

  void Quiesce(VerbsLane& lane) {
    lanes_.NicOf(lane).connector->Forget(lane.id());
    lane.Quiesce();
    ReturnProbe(lane);
  }

  void Forget(VerbsLane& lane) {
    rendezvous_->Close(lane.id());
    if (lane.side.open()) by_socket_.erase(lane.side.fd());
    lane.side.Close();
  }

  // --- descriptors ---

  void PollDescriptors() {
    polls_ = 0;
    ready_.clear();
    if (descriptors_.Take(ready_)) LookForSilence();
    bool device_events = false;
    for (const int fd : ready_) {
      if (fd == connected_.fd()) {
        TakeConnected();
      } else if (const auto lane = by_socket_.find(fd); lane != by_socket_.end()) {
        ReadSide(lane->second);
      } else if (!rendezvous_->Handle(fd)) {
        device_events = true;
      }
    }
    rendezvous_->Expire(clock_.Look());
    if (device_events) {
      for (const auto& used : nics_->nics()) used->queues->TakeEvents();
      nics_->TakeEvents([this](const NicTrouble& trouble) {
        for (VerbsLane* lane : lanes_.ConcernedBy(trouble)) Fail(*lane, trouble.status);
      });
    }
    for (net::Rendezvous::Met& met : rendezvous_->TakeMet()) Meet(met);
    // Nobody else, neither a completion nor the device nor the peer, has told the cause.
    for (const ibv_wc& done : flushed_) {
      VerbsLane* lane = lanes_.FindLive(SendQueue::LaneOf(done.wr_id));
      if (lane != nullptr) Fail(*lane, lane->FailureOf(done));
    }
    flushed_.clear();
  }

  // Both ends meet when both queue pairs are ready.
  void TakeConnected() {
    connected_.Forget();
    for (const auto& used : nics_->nics()) {
      for (Connector::Done& done : used->connector->TakeDone()) {
        VerbsLane* lane = lanes_.FindLive(done.lane);
        if (lane == nullptr) continue;
        absl::Status status = std::move(done.status);
        if (status.ok()) status = rendezvous_->Connect(done.lane, lane->peer_address->rendezvous);
        FailUnless(*lane, std::move(status));
      }
    }
  }

  void LookForSilence() {
    for (VerbsLane* lane : lanes_.SilentFor(options_.dead_peer_timeout)) {
      Fail(*lane, absl::UnavailableError(
                      absl::StrCat("the host of ", lane->peer(), " has acknowledged nothing for ",
                                   absl::FormatDuration(options_.dead_peer_timeout))));
    }
  }

  // Both queue pairs are ready to receive now: each end says where the other is to write its probe.
  void Meet(net::Rendezvous::Met& met) {
    VerbsLane* lane = lanes_.FindLive(met.end);
    if (lane == nullptr) return;
    absl::Status status = met.socket.status();
    if (met.socket.ok()) {
      const int fd = met.socket->get();
      lane->side = SideChannel(*std::move(met.socket));
      by_socket_[fd] = lane->id();
      status =
          net::SetKeepAlive(fd, static_cast<int>(absl::ToInt64Seconds(options_.dead_peer_timeout)));
      if (status.ok()) status = descriptors_.Watch(fd);
    }
    if (!status.ok()) return Fail(*lane, std::move(status));
    lane->probe = lanes_.NicOf(*lane).probes->Take();
    ProbeBody body;
    if (lane->probe) {
      body = {.address = reinterpret_cast<uintptr_t>(lane->probe->incoming),
              .remote_key = lane->probe->remote_key,
              .size_bytes = kProbeBytes};
    }
    Sent(*lane, lane->side.Send(FrameKind::kProbe, Packed(body)));
  }

  void TakeProbe(VerbsLane& lane, uint32_t immediate) {
    FailUnless(lane, lane.CheckProbe(immediate));
    if (lane.status.ok()) lane.Arrived(immediate, events_);
    if (lane.connected()) ReturnProbe(lane);
  }

  // The lane is proved, or its queue pair is gone.
  void ReturnProbe(VerbsLane& lane) {
    if (std::exchange(lane.unproved, false)) --lanes_.NicOf(lane).unproved;
    const std::optional<ProbeSlot> slot = std::exchange(lane.probe, std::nullopt);
    if (slot) lanes_.NicOf(lane).probes->Return(*slot);
  }

  void ReadSide(uint32_t id) {
    VerbsLane* lane = lanes_.FindLive(id);
    if (lane == nullptr) return;
    std::vector<Frame> frames;
    absl::Status status = lane->side.Read(frames);
    for (const Frame& frame : frames) {
      if (lane->status.ok()) Handle(*lane, frame);
    }
    if (lane->status.ok() && lane->side.has_unsent()) Sent(*lane, lane->side.Flush());
    if (lane->status.ok()) TellDelivered(*lane);
    if (status.ok() || !lane->status.ok()) return;
    if (absl::IsAborted(status)) {
      while (PollCompletions()) {  // Completions from before the event count.
      }
      status = absl::UnavailableError(absl::StrCat(lane->peer(), " is gone: it closed the lane"));
    }
    Fail(*lane, std::move(status));
  }

  void Handle(VerbsLane& lane, const Frame& frame) {
    uint64_t number = 0;  // A key, or a count.
    const bool is_number = frame.body.size() == sizeof(number);
    if (is_number) std::memcpy(&number, frame.body.data(), sizeof(number));
    switch (frame.kind) {
      case FrameKind::kProbe: {
        ProbeBody body;
        if (frame.body.size() != sizeof(body)) break;
        std::memcpy(&body, frame.body.data(), sizeof(body));
        if (!lane.PostProbe(body)) break;
        return FailUnless(lane, lane.Pump(/*flush=*/true));
      }
      case FrameKind::kGrant:
        if (!lane.TakeGrants(frame.body)) break;
        return Sent(lane, lane.side.Send(FrameKind::kTaken, ""));
      case FrameKind::kTaken:
        if (lane.grants_under_way == 0) break;
        --lane.grants_under_way;
        return FailUnless(lane, lane.Pump(/*flush=*/true));
      case FrameKind::kRevoke:
        if (!is_number) break;
        return TakeRevocation(lane, number);
      case FrameKind::kRing:
        if (!lane.TakePeerRing(frame.body)) break;
        return (void)NeedRing(lane);
      case FrameKind::kDelivered:
        tokens_.clear();
        if (!is_number || !lane.sends().Taken(number, tokens_)) break;
        TellCompleted(lane);
        return FailUnless(lane, lane.Pump(/*flush=*/true));
      case FrameKind::kRefused:
        return Fail(lane, absl::FailedPreconditionError(
                              absl::StrCat(lane.peer(), " refused a write: ", frame.body)));
      case FrameKind::kGoodbye:
        while (PollCompletions()) {
        }
        return Fail(lane, absl::UnavailableError(
                              absl::StrCat(lane.peer(), " gave up the lane: ", frame.body)));
    }
    Fail(lane, absl::DataLossError("a frame of an unknown kind"));
  }

  // A write that waits would go out by the old key, and fail the lane at the peer's NIC at best.
  void TakeRevocation(VerbsLane& lane, uint64_t key) {
    imports_.Revoke(lane, key);
    const auto granted = lane.granted_by_peer.find(key);
    if (granted == lane.granted_by_peer.end()) return;
    const PeerRegion region = std::move(granted->second);
    lane.granted_by_peer.erase(granted);
    if (!lane.sends().HasWaitingFor(key, region.remote_key)) return;
    Fail(lane, absl::FailedPreconditionError(absl::StrCat(lane.peer(), " took back the grant of \"",
                                                          region.name,
                                                          "\" while writes to it were waiting")));
  }

  void Sent(VerbsLane& lane, const absl::Status& status) {
    if (status.ok()) {
      descriptors_.WatchForRoom(lane.side.fd(), lane.side.has_unsent());
    } else {
      Fail(lane, absl::UnavailableError(absl::StrCat(lane.peer(), " is gone")));
    }
  }

  const VerbsOptions options_;
  PolledClock clock_{options_.now};
  const Capabilities capabilities_ = {.name = "verbs",
                                      .can_map = false,
                                      .source_must_be_granted = false,
                                      .max_write_bytes = ~uint64_t{0} >> 1,
                                      .max_outstanding_posts = 64};
  Verbs& verbs_;
  const std::unique_ptr<NicSet> nics_;
  const std::string why_nics_;
  const LaneSettings settings_;
  Regions regions_;
  Descriptors descriptors_;
  Waker connected_;  // Readable when a connector has done something.
  std::unique_ptr<net::Rendezvous> rendezvous_;
  uint32_t last_lane_ = 0;
  LaneTable lanes_;
  std::set<std::string> bounce_peers_;  // Lanes to them have needed a ring.
  std::map<int, uint32_t> by_socket_;
  Imports imports_;
  std::vector<FabricEvent> events_;
  uint32_t polls_ = 0;
  absl::Time last_call_ = SteadyNow();  // The time of the last Post(), Poll() or ArmWait().
  uint64_t failed_lanes_ = 0;
  uint64_t grant_frames_ = 0;
  SendCounts sent_;
  std::vector<uint32_t> granting_;     // Lanes with pending grants.
  std::vector<RemoteWrite> resolved_;  // Scratch, as is what follows.
  std::vector<ibv_wc> receives_;
  std::vector<ibv_wc> sends_;
  std::vector<ibv_wc> flushed_;  // Until the next look at the descriptors.
  std::vector<uint64_t> tokens_;
  std::vector<int> ready_;
};

}  // namespace
}  // namespace verbs

absl::StatusOr<std::unique_ptr<Fabric>> MakeVerbsFabric(const VerbsOptions& options) {
  if (options.queue_depth == 0 || options.chain == 0 || options.bounce.ring_bytes() == 0) {
    return absl::InvalidArgumentError("verbs: a queue depth, a chain and a bounce ring are needed");
  }
  verbs::Verbs* library = options.library;
  if (library == nullptr) {
    WAYBILL_ASSIGN_OR_RETURN(library, verbs::LoadLibibverbs());
  }
  WAYBILL_ASSIGN_OR_RETURN(std::unique_ptr<verbs::NicSet> nics,
                           verbs::NicSet::Open(library, options.nics, options.gid_index));
  std::string why_nics;
  if (options.nics.empty() && options.choose) {
    std::vector<std::string> active;
    for (const auto& used : nics->nics()) active.push_back(used->nic.name());
    ChosenNics chosen = options.choose(active);
    nics->KeepOnly(chosen.names);
    why_nics = std::move(chosen.why);
  }
  auto fabric =
      std::make_unique<verbs::VerbsFabric>(options, library, std::move(nics), std::move(why_nics));
  WAYBILL_RETURN_IF_ERROR(fabric->Start());
  return fabric;
}

}  // namespace waybill
