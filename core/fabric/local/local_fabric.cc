// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/local/local_fabric.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/random_bits.h"
#include "core/base/status.h"
#include "core/device/shared_memory.h"
#include "core/fabric/import_table.h"
#include "core/fabric/local/frames.h"
#include "core/fabric/local/gpu_reader.h"
#include "core/fabric/local/local_lane.h"
#include "core/fabric/local/read_permit.h"
#include "core/fabric/local/strangers.h"
#include "core/fabric/local/unix_socket.h"
#include "core/fabric/local/write_records.h"
#include "core/fabric/progress.h"
#include "core/fabric/region_table.h"
#include "core/fabric/waker.h"
#include "kernels/copy.h"

namespace waybill {
namespace local {
namespace {

template <typename Body>
absl::Status ReadBody(absl::Span<const std::byte> bytes, Body& body) {
  if (bytes.size() != sizeof(body)) return absl::DataLossError("a frame of a wrong size");
  std::memcpy(&body, bytes.data(), sizeof(body));
  return absl::OkStatus();
}

class LocalFabric final : public Fabric {
 public:
  explicit LocalFabric(const LocalOptions& options)
      : strangers_(options.stranger_timeout, options.most_strangers) {}

  absl::Status Start() {
    events_.reserve(kUsualEvents);
    WAYBILL_ASSIGN_OR_RETURN(const uint64_t name, RandomBits());
    name_ = absl::StrCat("waybill-", absl::Hex(name, absl::kZeroPad16));
    WAYBILL_ASSIGN_OR_RETURN(listener_, Listen(name_));
    epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_.valid()) {
      return absl::InternalError(absl::StrCat("local fabric: ", std::strerror(errno)));
    }
    WAYBILL_RETURN_IF_ERROR(waker_.Start());
    WAYBILL_RETURN_IF_ERROR(strangers_.Start());
    WAYBILL_RETURN_IF_ERROR(Watch(strangers_.timer(), EPOLLIN));
    WAYBILL_RETURN_IF_ERROR(Watch(listener_.get(), EPOLLIN));
    return Watch(waker_.fd(), EPOLLIN);
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  absl::StatusOr<Region> Register(const MemorySpan& memory, absl::string_view name) override {
    WAYBILL_RETURN_IF_ERROR(While(absl::StrCat("register \"", name, "\""), gpu_.ReceiveIn(memory)));
    return regions_.Register(memory, name);
  }
  absl::StatusOr<Region> RegisterSource(const MemorySpan& memory, absl::string_view name) override {
    const std::string what = absl::StrCat("register \"", name, "\"");
    if (memory.kind != MemoryKind::kDevice) {
      return absl::UnimplementedError(
          absl::StrCat(what, ": of host memory the local fabric reads what is granted only"));
    }
    absl::StatusOr<NamedMemory> named = NamedMemory::Create(memory);
    if (!named.ok()) return While(what, named.status());
    WAYBILL_ASSIGN_OR_RETURN(const Region region, regions_.Register(memory, name));
    sources_.emplace(region.id, *std::move(named));
    return region;
  }
  absl::StatusOr<Region> Allocate(uint64_t size_bytes, absl::string_view name) override {
    return regions_.Allocate(size_bytes, name);
  }
  absl::Status Release(RegionId region) override {
    Revoke(region);
    sources_.erase(region);
    return regions_.Release(region);
  }
  absl::Status Renew(RegionId region, Contents contents) override {
    Revoke(region);
    return regions_.Renew(region, contents);
  }

  absl::StatusOr<std::string> Describe(RegionId id) override {
    WAYBILL_ASSIGN_OR_RETURN(const OwnRegion* region, regions_.Find(id));
    return absl::StrCat(absl::Hex(region->key, absl::kZeroPad16));
  }

  absl::Status Grant(LaneId lane_id, RegionId id) override {
    WAYBILL_ASSIGN_OR_RETURN(OwnRegion * region, regions_.Find(id));
    WAYBILL_ASSIGN_OR_RETURN(LocalLane * lane, UsableLane(lane_id));
    const GrantBody body{.key = region->key,
                         .size_bytes = region->memory.size_bytes,
                         .has_pages = region->pages ? 1u : 0u,
                         .gpu_memory = NameOf(id)};
    WAYBILL_RETURN_IF_ERROR(SendParts(lane_id, *lane, id));
    int pages[1] = {-1};
    if (region->pages) pages[0] = region->pages->fd();
    region->grants.insert(lane_id);
    return Sent(lane_id, *lane,
                lane->SendFrame({.kind = FrameKind::kGrant}, BytesOf(body),
                                {pages, region->pages ? 1u : 0u}));
  }

  absl::StatusOr<RemoteRegionId> Import(LaneId lane_id, absl::string_view descriptor) override {
    WAYBILL_ASSIGN_OR_RETURN(LocalLane * lane, UsableLane(lane_id));
    uint64_t key = 0;
    if (!absl::SimpleHexAtoi(descriptor, &key)) {
      return absl::InvalidArgumentError(absl::StrCat("import a region: \"", descriptor, "\""));
    }
    if (lane->FindGrantedByPeer(key) == nullptr) return NotGranted(*lane);
    return imports_.Add(lane_id, key);
  }

  absl::StatusOr<MemorySpan> Map(RemoteRegionId id) override {
    WAYBILL_ASSIGN_OR_RETURN(const auto* import, imports_.Find(id));
    WAYBILL_ASSIGN_OR_RETURN(LocalLane * lane, UsableLane(import->lane));
    PeerRegion* region = lane->FindGrantedByPeer(import->target);
    if (region == nullptr) return NotGranted(*lane);
    absl::StatusOr<MemorySpan> memory = region->Memory(gpu_.receiver());
    if (memory.ok()) return memory;
    return While(absl::StrCat("map memory of ", lane->peer()), memory.status());
  }

  absl::Status EndImport(RemoteRegionId id) override {
    WAYBILL_ASSIGN_OR_RETURN(const auto import, imports_.Remove(id));
    bool again = false;
    imports_.ForEachOn(import.lane, [&](uint64_t key) { again = again || key == import.target; });
    if (!again) lanes_.at(import.lane).ForgetIfRevoked(import.target);
    return absl::OkStatus();
  }

  absl::StatusOr<LaneId> OpenLane(absl::string_view peer, absl::string_view) override {
    WAYBILL_ASSIGN_OR_RETURN(const uint64_t secret, RandomBits());
    const LaneId id{++last_lane_};
    lanes_.try_emplace(id, std::string(peer), secret);
    return id;
  }

  absl::StatusOr<std::string> LaneAddress(LaneId id) const override {
    const auto lane = lanes_.find(id);
    if (lane == lanes_.end()) return NoLane(id);
    return absl::StrCat(name_, "/", absl::Hex(lane->second.secret(), absl::kZeroPad16));
  }

  absl::Status ConnectLane(LaneId id, absl::string_view peer_address) override {
    const auto found = lanes_.find(id);
    if (found == lanes_.end()) return NoLane(id);
    LocalLane& lane = found->second;
    const std::pair<std::string, std::string> parts = absl::StrSplit(peer_address, '/');
    uint64_t peer_secret = 0;
    if (!absl::SimpleHexAtoi(parts.second, &peer_secret) || peer_secret == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("connect to ", lane.peer(), ": \"", peer_address, "\" is no address"));
    }
    if (lane.peer_secret != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("connect to ", lane.peer(), ": this lane has a peer"));
    }
    lane.peer_secret = peer_secret;
    WAYBILL_ASSIGN_OR_RETURN(lane.own_permit, ReadPermit::Create());
    // The end with the smaller name connects, and the other end waits for its hello.
    const auto own = std::pair(name_, lane.secret());
    const bool begins = own < std::pair(parts.first, lane.peer_secret);
    if (!begins && lane.hello_from != 0) return Welcome(id, lane);
    // The one that waits looks only whether there is anybody to wait for.
    absl::StatusOr<UniqueFd> socket = Connect(parts.first);
    if (!socket.ok()) return Fail(id, lane, socket.status());
    if (!begins) return absl::OkStatus();
    lane.socket = *std::move(socket);
    WAYBILL_RETURN_IF_ERROR(Adopt(id, lane));
    const ProbeOfOurs probe = ProbeFor(lane);
    const HelloBody hello{
        .wanted_lane = lane.peer_secret, .own_lane = lane.secret(), .probe = probe.body};
    return Sent(id, lane, SendWithProbe(lane, FrameKind::kHello, BytesOf(hello), probe));
  }

  absl::Status CloseLane(LaneId id) override {
    const auto lane = lanes_.find(id);
    if (lane == lanes_.end()) return NoLane(id);
    if (lane->second.socket.valid()) by_socket_.erase(lane->second.socket.get());
    lanes_.erase(lane);
    regions_.ForgetLane(id);
    imports_.ForgetLane(id);
    std::erase_if(events_, [id](const FabricEvent& e) { return e.lane == id; });
    return absl::OkStatus();
  }

  absl::Status LaneStatus(LaneId id) const override {
    const auto lane = lanes_.find(id);
    return lane == lanes_.end() ? NoLane(id) : lane->second.status;
  }

  absl::Status CheckRead(LaneId id, RegionId source) const override {
    const auto lane = lanes_.find(id);
    if (lane == lanes_.end()) return NoLane(id);
    if (!lane->second.opens_ours) return absl::FailedPreconditionError("not connected");
    if (NameOf(source).part_count == 0) return lane->second.opens_ours->allocated;
    WAYBILL_RETURN_IF_ERROR(lane->second.why_not_asked);
    return lane->second.opens_ours->created;
  }

  std::string DescribeLane(LaneId id) const override {
    const auto lane = lanes_.find(id);
    const bool opens =
        lane != lanes_.end() && lane->second.opens_ours &&
        (lane->second.opens_ours->allocated.ok() || lane->second.opens_ours->created.ok());
    return opens ? "local: shared memory, also of GPUs" : "local: shared memory";
  }

  absl::Status Post(LaneId id, absl::Span<const Write> writes, std::optional<uint32_t> immediate,
                    uint64_t token) override {
    WAYBILL_ASSIGN_OR_RETURN(LocalLane * lane, UsableLane(id));
    if (lane->tokens.size() >= capabilities_.max_outstanding_posts) {
      return absl::ResourceExhaustedError(
          absl::StrCat(lane->tokens.size(), " posts outstanding to ", lane->peer()));
    }
    for (const Write& write : writes) WAYBILL_RETURN_IF_ERROR(GrantSource(id, write.source));
    // A post that is refused posts nothing, so all of it is looked at before any is sent.
    for (size_t i = kMostRecords; i < writes.size(); ++i) {
      WAYBILL_RETURN_IF_ERROR(RecordOf(id, *lane, writes[i]).status());
    }
    std::array<WriteRecord, kMostRecords> records;
    do {
      const size_t count = std::min<size_t>(writes.size(), kMostRecords);
      for (size_t i = 0; i < count; ++i) {
        WAYBILL_ASSIGN_OR_RETURN(records[i], RecordOf(id, *lane, writes[i]));
      }
      writes.remove_prefix(count);
      const bool last = writes.empty();
      const FrameHeader header{.kind = FrameKind::kWrites,
                               .immediate = last ? immediate.value_or(0) : 0,
                               .has_immediate = last && immediate ? 1u : 0u,
                               .count = static_cast<uint32_t>(count),
                               .wants_done = last ? 1u : 0u,
                               .token = token};
      WAYBILL_RETURN_IF_ERROR(
          Sent(id, *lane,
               lane->SendFrame(header, {reinterpret_cast<const std::byte*>(records.data()),
                                        count * sizeof(WriteRecord)})));
    } while (!writes.empty());
    lane->tokens.PushBack(token);
    return absl::OkStatus();
  }

  absl::Status Signal(LaneId id, uint32_t immediate) override {
    WAYBILL_ASSIGN_OR_RETURN(LocalLane * lane, UsableLane(id));
    kernels::StreamFence();
    return Sent(id, *lane,
                lane->SendFrame({.kind = FrameKind::kImmediate, .immediate = immediate}, {}));
  }

  void Poll(std::vector<FabricEvent>& events) override {
    std::array<epoll_event, 64> ready;
    const int count =
        epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), /*timeout=*/0);
    for (int i = 0; i < count; ++i) {
      const int fd = ready[static_cast<size_t>(i)].data.fd;
      if (fd == listener_.get()) {
        AcceptAll();
      } else if (fd == strangers_.timer()) {
        strangers_.Expire();
      } else if (strangers_.Has(fd)) {
        ReadHello(fd);
      } else if (const auto lane = by_socket_.find(fd); lane != by_socket_.end()) {
        ReadLane(lane->second);
      }
    }
    HandOut(events_, events);
  }

  void Wait(absl::Time deadline) override {
    if (!events_.empty()) return;
    epoll_event ready;
    epoll_wait(epoll_.get(), &ready, 1, MillisecondsUntil(deadline));
    waker_.Forget();
  }

  void Wake() override { waker_.Wake(); }

  int wait_descriptor() const override { return epoll_.get(); }
  bool ArmWait() override { return events_.empty(); }

  std::vector<FabricCount> Counts() const override {
    return {{"accepted_sockets", accepted_},
            {"refused_strangers", refused_},
            {"silent_strangers", strangers_.silent_count()}};
  }

 private:
  absl::Status NoLane(LaneId id) const {
    return absl::NotFoundError(absl::StrCat("no lane ", static_cast<uint32_t>(id)));
  }

  absl::Status Watch(int fd, uint32_t what) {
    epoll_event event{.events = what, .data = {.fd = fd}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return absl::InternalError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
    }
    return absl::OkStatus();
  }

  void WatchForRoom(const LocalLane& lane) {
    epoll_event event{.events = EPOLLIN | (lane.has_unsent() ? uint32_t{EPOLLOUT} : 0u),
                      .data = {.fd = lane.socket.get()}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, lane.socket.get(), &event);
  }

  absl::StatusOr<LocalLane*> UsableLane(LaneId id) {
    const auto lane = lanes_.find(id);
    if (lane == lanes_.end()) return NoLane(id);
    WAYBILL_RETURN_IF_ERROR(lane->second.status);
    if (!lane->second.connected) {
      return absl::FailedPreconditionError(
          absl::StrCat("lane to ", lane->second.peer(), " is not connected"));
    }
    return &lane->second;
  }

  absl::Status NotGranted(const LocalLane& lane) const {
    return absl::FailedPreconditionError(
        absl::StrCat("a region of ", lane.peer(),
                     " is not granted on this lane, or was renewed since it was described"));
  }

  absl::StatusOr<WriteRecord> RecordOf(LaneId id, LocalLane& lane, const Write& write) {
    WAYBILL_ASSIGN_OR_RETURN(const uint64_t* key, imports_.FindOn(id, write.destination));
    if (lane.FindGrantedByPeer(*key) == nullptr) return NotGranted(lane);
    return MakeRecord(regions_, id, write, *key);
  }

  SharedMemoryName NameOf(RegionId id) const {
    const auto source = sources_.find(id);
    return source == sources_.end() ? SharedMemoryName() : source->second.name();
  }
  // What a peer is asked to try to open: any of it, one of each kind.
  struct ProbeOfOurs {
    ProbeBody body;
    UniqueFd file;  // That comes along, if there is memory of cuMemCreate().
  };
  ProbeOfOurs ProbeFor(LocalLane& lane) const {
    ProbeOfOurs probe;
    for (const auto& [id, source] : sources_) {
      if (source.parts().empty()) {
        if (!probe.body.allocated.names_something()) probe.body.allocated = source.name();
      } else if (!probe.file.valid()) {
        absl::StatusOr<UniqueFd> file = source.ExportPart(0);
        lane.why_not_asked = file.status();
        if (!file.ok()) continue;
        probe.file = *std::move(file);
        probe.body.created_bytes = source.parts().front().size_bytes;
      }
    }
    return probe;
  }
  static absl::Status SendWithProbe(LocalLane& lane, FrameKind kind,
                                    absl::Span<const std::byte> body, const ProbeOfOurs& probe) {
    const int fds[] = {lane.own_permit->fd(), probe.file.get()};
    return lane.SendFrame({.kind = kind}, body, {fds, probe.file.valid() ? 2u : 1u});
  }

  // Sends the allocations of cuMemCreate() of a region that is granted next. A failure to export
  // one is this end's, and does not harm the lane.
  absl::Status SendParts(LaneId lane_id, LocalLane& lane, RegionId id) {
    const auto source = sources_.find(id);
    if (source == sources_.end()) return absl::OkStatus();
    const absl::Span<const CreatedPart> parts = source->second.parts();
    for (size_t i = 0; i < parts.size(); ++i) {
      WAYBILL_ASSIGN_OR_RETURN(const UniqueFd file, source->second.ExportPart(i));
      const PartBody body{.index = i, .size_bytes = parts[i].size_bytes};
      WAYBILL_RETURN_IF_ERROR(Sent(
          lane_id, lane, lane.SendFrame({.kind = FrameKind::kPart}, BytesOf(body), {file.get()})));
    }
    return absl::OkStatus();
  }

  // A GPU's memory that is to be read is granted when it is first posted from.
  absl::Status GrantSource(LaneId lane, RegionId id) {
    if (!sources_.contains(id)) return absl::OkStatus();
    WAYBILL_ASSIGN_OR_RETURN(const OwnRegion* region, regions_.Find(id));
    return region->grants.contains(lane) ? absl::OkStatus() : Grant(lane, id);
  }

  // Tells those to whom the region is granted that it is theirs no more.
  void Revoke(RegionId id) {
    const absl::StatusOr<OwnRegion*> region = regions_.Find(id);
    if (!region.ok()) return;
    const GrantBody body{.key = (*region)->key};
    for (const LaneId lane_id : (*region)->grants) {
      const absl::StatusOr<LocalLane*> lane = UsableLane(lane_id);
      if (!lane.ok()) continue;
      (void)Sent(lane_id, **lane, (*lane)->SendFrame({.kind = FrameKind::kRevoke}, BytesOf(body)));
    }
  }

  // --- sockets ---

  absl::Status Adopt(LaneId id, LocalLane& lane) {
    by_socket_[lane.socket.get()] = id;
    return Watch(lane.socket.get(), EPOLLIN);
  }

  // Handles the result of a frame: an error kills the lane and is reported by an event, not here.
  absl::Status Sent(LaneId id, LocalLane& lane, absl::Status status) {
    if (!status.ok()) return Fail(id, lane, std::move(status));
    if (lane.has_unsent()) WatchForRoom(lane);
    return absl::OkStatus();
  }

  absl::Status Fail(LaneId id, LocalLane& lane, absl::Status status) {
    if (!lane.status.ok()) return absl::OkStatus();
    lane.status = WithScope(
        absl::IsAborted(status)
            ? absl::UnavailableError(absl::StrCat(lane.peer(), " is gone: its socket is closed"))
            : While(absl::StrCat("local lane to ", lane.peer()), std::move(status)),
        Scope::kPeer);
    if (lane.socket.valid()) by_socket_.erase(lane.socket.get());
    lane.Disconnect();
    lane.ForgetGpuMemory();
    events_.push_back({.kind = FabricEvent::Kind::kFailed, .lane = id});
    return absl::OkStatus();
  }

  void AcceptAll() {
    for (UniqueFd fd = Accept(listener_.get()); fd.valid(); fd = Accept(listener_.get())) {
      ++accepted_;
      if (Watch(fd.get(), EPOLLIN).ok()) strangers_.Add(std::move(fd));
    }
  }

  // The first frame of somebody who connected tells which lane it wants.
  void ReadHello(int stranger) {
    struct {
      FrameHeader header;
      HelloBody hello;
    } frame;
    absl::StatusOr<Received> received =
        Receive(stranger, {reinterpret_cast<std::byte*>(&frame), sizeof(frame)});
    if (absl::IsUnavailable(received.status())) return;
    UniqueFd socket = strangers_.Take(stranger);
    ++refused_;  // Unless a lane takes it.
    if (!received.ok() || received->size_bytes != sizeof(frame)) return;
    const auto& [header, hello] = frame;
    if (header.kind != FrameKind::kHello || hello.own_lane == 0) return;
    for (auto& [id, lane] : lanes_) {
      if (lane.secret() != hello.wanted_lane || lane.socket.valid() || !lane.status.ok()) continue;
      absl::StatusOr<ReadPermit> permit = ReadPermit::FromPeer(std::move(received->fds[0]));
      if (!permit.ok()) return;
      lane.peer_permit = *std::move(permit);
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
      lane.socket = std::move(socket);
      lane.hello_from = hello.own_lane;
      lane.peer_probe = hello.probe;
      lane.peer_probe_file = std::move(received->fds[1]);
      --refused_;
      if (!Adopt(id, lane).ok()) return;
      if (lane.peer_secret != 0) (void)Welcome(id, lane);
      return;
    }
  }

  absl::Status Welcome(LaneId id, LocalLane& lane) {
    if (lane.hello_from != lane.peer_secret) {
      return Fail(id, lane, absl::PermissionDeniedError("another process answered"));
    }
    lane.connected = true;
    const ProbeOfOurs probe = ProbeFor(lane);
    const WelcomeBody welcome{.probe = probe.body,
                              .tried = Tried(lane.peer_probe, lane.peer_probe_file)};
    lane.peer_probe_file.Reset();
    if (AsksNothing(probe.body)) TakeAnswer(id, lane, {NothingToOpen(), NothingToOpen()});
    return Sent(id, lane, SendWithProbe(lane, FrameKind::kWelcome, BytesOf(welcome), probe));
  }

  static absl::Status NothingToOpen() {
    return absl::FailedPreconditionError("no memory of a GPU was registered before");
  }
  static bool AsksNothing(const ProbeBody& probe) {
    return !probe.allocated.names_something() && probe.created_bytes == 0;
  }
  TriedBody Tried(const ProbeBody& probe, const UniqueFd& file) const {
    return {.allocated = ToRefusal(probe.allocated.names_something() ? gpu_.Try(probe.allocated)
                                                                     : NothingToOpen()),
            .created = ToRefusal(probe.created_bytes > 0 ? gpu_.TryPart(file, probe.created_bytes)
                                                         : NothingToOpen())};
  }
  static Openings FromTried(const TriedBody& tried) {
    return {FromRefusal(tried.allocated), FromRefusal(tried.created)};
  }

  // Both ends are there, and the peer has said whether it can open this end's GPU memory.
  void TakeAnswer(LaneId id, LocalLane& lane, Openings opens_ours) {
    lane.opens_ours = std::move(opens_ours);
    events_.push_back({.kind = FabricEvent::Kind::kConnected, .lane = id});
  }

  void ReadLane(LaneId id) {
    LocalLane& lane = lanes_.at(id);
    if (lane.has_unsent()) {
      if (absl::Status status = lane.Flush(); !status.ok()) (void)Fail(id, lane, status);
      if (lane.status.ok() && !lane.has_unsent()) WatchForRoom(lane);
    }
    for (int i = 0; i < kMostFramesAtOnce && lane.status.ok(); ++i) {
      absl::StatusOr<Received> received = Receive(lane.socket.get(), absl::MakeSpan(frame_));
      if (absl::IsUnavailable(received.status())) break;
      absl::Status status = received.ok() ? Handle(id, lane, *received) : received.status();
      if (status.ok()) continue;
      (void)FinishCarried(id, lane);
      (void)Fail(id, lane, std::move(status));
    }
    if (absl::Status status = FinishCarried(id, lane); !status.ok()) {
      (void)Fail(id, lane, std::move(status));
    }
  }

  absl::Status Handle(LaneId id, LocalLane& lane, Received& received) {
    FrameHeader header;
    if (received.size_bytes < sizeof(header)) return absl::DataLossError("a frame is too short");
    std::memcpy(&header, frame_.data(), sizeof(header));
    const auto body =
        absl::MakeConstSpan(frame_).subspan(sizeof(header), received.size_bytes - sizeof(header));
    if (!lane.Expects(header.kind)) {
      return absl::DataLossError("a welcome that is not the first frame, or none");
    }
    if (received.fds[1].valid() && header.kind != FrameKind::kWelcome) {
      return absl::DataLossError("a frame with a descriptor too many");
    }
    if (header.kind != FrameKind::kWrites) WAYBILL_RETURN_IF_ERROR(FinishCarried(id, lane));
    switch (header.kind) {
      case FrameKind::kWelcome:
        return TakeWelcome(id, lane, body, received);
      case FrameKind::kTried: {
        TriedBody tried;
        WAYBILL_RETURN_IF_ERROR(ReadBody(body, tried));
        TakeAnswer(id, lane, FromTried(tried));
        return absl::OkStatus();
      }
      case FrameKind::kPart:
        return lane.TakePart(body, received.fds[0], gpu_.receiver());
      case FrameKind::kGrant:
        return lane.TakeGrant(body, std::move(received.fds[0]));
      case FrameKind::kRevoke:
        return lane.TakeRevocation(body);
      case FrameKind::kWrites:
        return CarryOut(id, lane, header, body);
      case FrameKind::kDone:
        WAYBILL_RETURN_IF_ERROR(lane.TakeDone(header.token));
        events_.push_back({FabricEvent::Kind::kComplete, id, header.token});
        return absl::OkStatus();
      case FrameKind::kRefused: {
        RefusalBody refusal;
        WAYBILL_RETURN_IF_ERROR(ReadBody(body, refusal));
        if (refusal.code == 0) return absl::DataLossError("a refusal without a code");
        return FromRefusal(refusal);
      }
      case FrameKind::kImmediate:
        events_.push_back({FabricEvent::Kind::kImmediate, id, 0, header.immediate});
        return absl::OkStatus();
      case FrameKind::kHello:
        break;
    }
    return absl::DataLossError("a frame of an unknown kind");
  }

  absl::Status TakeWelcome(LaneId id, LocalLane& lane, absl::Span<const std::byte> body,
                           Received& received) {
    WelcomeBody welcome;
    WAYBILL_RETURN_IF_ERROR(ReadBody(body, welcome));
    WAYBILL_ASSIGN_OR_RETURN(lane.peer_permit, ReadPermit::FromPeer(std::move(received.fds[0])));
    lane.connected = true;
    TakeAnswer(id, lane, FromTried(welcome.tried));
    if (AsksNothing(welcome.probe)) return absl::OkStatus();
    return Sent(id, lane,
                lane.SendFrame({.kind = FrameKind::kTried},
                               BytesOf(Tried(welcome.probe, received.fds[1]))));
  }

  // Copies what a peer asked for. What it may not have ends the lane, and it is told why. A GPU
  // copies while more frames are read, and is waited for once: a round trip to it is as long as a
  // copy of tens of MiB.
  absl::Status CarryOut(LaneId id, LocalLane& lane, const FrameHeader& header,
                        absl::Span<const std::byte> body) {
    if (body.size() != header.count * sizeof(WriteRecord)) {
      return absl::DataLossError("a frame of writes of a wrong size");
    }
    for (uint32_t i = 0; i < header.count; ++i) {
      WriteRecord record;
      std::memcpy(&record, body.data() + i * sizeof(record), sizeof(record));
      absl::Status status = CarryOutRecord(regions_, gpu_, id, lane, record);
      if (status.ok()) continue;
      (void)FinishCarried(id, lane);  // The frames before this one.
      lane.TellRefused(status);
      return status;
    }
    if (header.wants_done != 0) carried_.push_back(header);
    return gpu_.has_queued() ? absl::OkStatus() : FinishCarried(id, lane);
  }

  // Waits for what a GPU copies, and reports the frames that are carried out.
  absl::Status FinishCarried(LaneId id, LocalLane& lane) {
    if (absl::Status status = FinishRecords(gpu_, lane); !status.ok()) {
      carried_.clear();
      lane.TellRefused(status);
      return status;
    }
    if (carried_.empty()) return absl::OkStatus();
    kernels::StreamFence();
    absl::Status status;
    for (const FrameHeader& header : carried_) {
      if (header.has_immediate != 0) {
        events_.push_back({FabricEvent::Kind::kImmediate, id, 0, header.immediate});
      }
      status = Sent(id, lane, lane.TellDone(header.token));
      if (!status.ok()) break;
    }
    carried_.clear();
    return status;
  }

  const Capabilities capabilities_ = {.name = "local",
                                      .can_map = true,
                                      .source_must_be_granted = true,
                                      .max_write_bytes = kMaxWriteBytes,
                                      .max_outstanding_posts = kMostOutstandingPosts};
  std::string name_;
  UniqueFd listener_;
  UniqueFd epoll_;
  Waker waker_;
  uint32_t last_lane_ = 0;
  RegionTable regions_{RegionTable::Renewal::kPages};
  std::map<RegionId, NamedMemory> sources_;  // GPU memory that peers read.
  GpuReader gpu_;
  std::map<LaneId, LocalLane> lanes_;
  std::map<int, LaneId> by_socket_;
  Strangers strangers_;
  uint64_t accepted_ = 0;  // Sockets.
  uint64_t refused_ = 0;   // Those that said something else than the hello of a lane of ours.
  ImportTable<uint64_t> imports_;  // Each by its key.
  std::vector<FabricEvent> events_;
  std::array<std::byte, kMostFrameBytes> frame_;
  // Frames of the lane that is being read which are carried out and not reported yet.
  std::vector<FrameHeader> carried_;
};

}  // namespace
}  // namespace local

absl::StatusOr<std::unique_ptr<Fabric>> MakeLocalFabric(const LocalOptions& options) {
  auto fabric = std::make_unique<local::LocalFabric>(options);
  WAYBILL_RETURN_IF_ERROR(fabric->Start());
  return fabric;
}

}  // namespace waybill
