// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/loopback/loopback.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/fabric/import_table.h"
#include "core/fabric/progress.h"
#include "core/fabric/shared_pages.h"

namespace waybill {
namespace {

class Endpoint;

struct PendingPost {
  std::vector<Write> writes;
  std::optional<uint32_t> immediate;
  std::optional<uint64_t> token;  // None for a signal.
};

struct LoopbackLane {
  std::string peer_name;
  std::string wanted_address;  // Empty until ConnectLane().
  Endpoint* peer = nullptr;    // Once connected.
  LaneId peer_lane = LaneId::kNone;
  absl::Status status;
  std::deque<PendingPost> posts;
};

struct LoopbackRegion {
  MemorySpan memory;
  std::string name;
  std::optional<SharedPages> pages;
  uint32_t generation = 1;
  std::set<LaneId> grants;
};

// A region at the peer, as it was described.
struct DescribedRegion {
  uint64_t incarnation;
  RegionId region;
  uint32_t generation;
};

}  // namespace

struct LoopbackNetwork::State {
  LoopbackOptions options;
  std::mutex mutex;
  std::mt19937 random;
  std::map<std::string, Endpoint*> endpoints;  // Those that live.
  uint64_t last_incarnation = 0;

  std::vector<std::pair<Endpoint*, LaneId>> ready;  // Scratch of Advance().
  void Advance();
  bool AnyReady();
  void TellAll();
};

namespace {

using State = LoopbackNetwork::State;

class Endpoint final : public Fabric {
 public:
  Endpoint(std::shared_ptr<State> state, std::string name, uint64_t incarnation)
      : state_(std::move(state)), name_(std::move(name)), incarnation_(incarnation) {
    capabilities_ = {.name = "loopback",
                     .can_map = state_->options.can_map,
                     .source_must_be_granted = false,
                     .max_write_bytes = uint64_t{16} << 20,
                     .max_outstanding_posts = 1024};
  }

  ~Endpoint() override {
    const std::lock_guard lock(state_->mutex);
    for (auto& [id, lane] : lanes_) FailPeerOf(lane, absl::UnavailableError(name_ + " is gone"));
    const auto self = state_->endpoints.find(name_);
    if (self != state_->endpoints.end() && self->second == this) state_->endpoints.erase(self);
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  absl::StatusOr<Region> Register(const MemorySpan& memory, absl::string_view name) override {
    const std::lock_guard lock(state_->mutex);
    return AddRegion({.memory = memory, .name = std::string(name)});
  }

  absl::StatusOr<Region> Allocate(uint64_t size_bytes, absl::string_view name) override {
    const std::lock_guard lock(state_->mutex);
    WAYBILL_ASSIGN_OR_RETURN(SharedPages pages, SharedPages::Create(size_bytes, name));
    const MemorySpan memory{MemoryKind::kHost, pages.data(), size_bytes};
    return AddRegion({.memory = memory, .name = std::string(name), .pages = std::move(pages)});
  }

  absl::Status Release(RegionId region) override {
    const std::lock_guard lock(state_->mutex);
    if (regions_.erase(region) == 0) return NoRegion(region);
    return absl::OkStatus();
  }

  absl::Status Renew(RegionId id, Contents contents) override {
    const std::lock_guard lock(state_->mutex);
    const auto region = regions_.find(id);
    if (region == regions_.end()) return NoRegion(id);
    ++region->second.generation;
    region->second.grants.clear();
    if (region->second.pages) return region->second.pages->Renew(contents);
    if (contents == Contents::kZeroed) {
      std::memset(region->second.memory.data, 0, region->second.memory.size_bytes);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Describe(RegionId id) override {
    const std::lock_guard lock(state_->mutex);
    const auto region = regions_.find(id);
    if (region == regions_.end()) return NoRegion(id);
    return absl::StrCat(incarnation_, ":", static_cast<uint32_t>(id), ":",
                        region->second.generation);
  }

  absl::Status Grant(LaneId lane, RegionId id) override {
    const std::lock_guard lock(state_->mutex);
    const auto region = regions_.find(id);
    if (region == regions_.end()) return NoRegion(id);
    WAYBILL_RETURN_IF_ERROR(UsableLane(lane).status());
    region->second.grants.insert(lane);
    return absl::OkStatus();
  }

  absl::StatusOr<RemoteRegionId> Import(LaneId lane, absl::string_view descriptor) override {
    const std::lock_guard lock(state_->mutex);
    WAYBILL_RETURN_IF_ERROR(UsableLane(lane).status());
    const std::vector<std::string> parts = absl::StrSplit(descriptor, ':');
    uint64_t incarnation = 0;
    uint32_t id = 0, generation = 0;
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &incarnation) ||
        !absl::SimpleAtoi(parts[1], &id) || !absl::SimpleAtoi(parts[2], &generation)) {
      return absl::InvalidArgumentError(absl::StrCat("import a region: \"", descriptor, "\""));
    }
    const DescribedRegion described{incarnation, RegionId{id}, generation};
    WAYBILL_RETURN_IF_ERROR(Resolve(lane, described).status());
    return imports_.Add(lane, described);
  }

  absl::StatusOr<MemorySpan> Map(RemoteRegionId id) override {
    const std::lock_guard lock(state_->mutex);
    WAYBILL_ASSIGN_OR_RETURN(const auto* import, imports_.Find(id));
    WAYBILL_ASSIGN_OR_RETURN(LoopbackRegion * region, Resolve(import->lane, import->target));
    if (!capabilities_.can_map || !region->pages) {
      return absl::UnimplementedError(absl::StrCat("map \"", region->name, "\": not by loopback"));
    }
    WAYBILL_ASSIGN_OR_RETURN(
        SharedPages mapping,
        SharedPages::FromPeer(UniqueFd(dup(region->pages->fd())), region->memory.size_bytes));
    const MemorySpan memory{MemoryKind::kHost, mapping.data(), mapping.size_bytes()};
    mappings_.emplace(id, std::move(mapping));
    return memory;
  }

  absl::Status EndImport(RemoteRegionId id) override {
    const std::lock_guard lock(state_->mutex);
    mappings_.erase(id);
    return imports_.Remove(id).status();
  }

  absl::StatusOr<LaneId> OpenLane(absl::string_view peer, absl::string_view) override {
    const std::lock_guard lock(state_->mutex);
    const LaneId id{++last_lane_};
    lanes_[id].peer_name = std::string(peer);
    return id;
  }

  absl::StatusOr<std::string> LaneAddress(LaneId lane) const override {
    const std::lock_guard lock(state_->mutex);
    if (!lanes_.contains(lane)) return NoLane(lane);
    return AddressOf(lane);
  }

  absl::Status ConnectLane(LaneId id, absl::string_view peer_address) override {
    const std::lock_guard lock(state_->mutex);
    const auto lane = lanes_.find(id);
    if (lane == lanes_.end()) return NoLane(id);
    if (!lane->second.wanted_address.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("connect to ", lane->second.peer_name, ": this lane has a peer"));
    }
    lane->second.wanted_address = std::string(peer_address);
    const std::vector<std::string> parts = absl::StrSplit(peer_address, '/');
    const auto peer = state_->endpoints.find(parts.empty() ? "" : parts[0]);
    uint32_t number = 0;
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[2], &number) ||
        peer == state_->endpoints.end() ||
        peer->second->AddressOf(LaneId{number}) != peer_address ||
        !peer->second->lanes_.contains(LaneId{number})) {
      FailLane(id, absl::UnavailableError(absl::StrCat("connect to ", lane->second.peer_name,
                                                       ": nobody is at ", peer_address)));
      return absl::OkStatus();
    }
    const LaneId peer_lane{number};
    LoopbackLane& other = peer->second->lanes_.at(peer_lane);
    if (other.wanted_address == AddressOf(id) && other.status.ok()) {
      lane->second.peer = peer->second;
      lane->second.peer_lane = peer_lane;
      other.peer = this;
      other.peer_lane = id;
      Tell({FabricEvent::Kind::kConnected, id});
      peer->second->Tell({FabricEvent::Kind::kConnected, peer_lane});
    }
    return absl::OkStatus();
  }

  absl::Status CloseLane(LaneId id) override {
    const std::lock_guard lock(state_->mutex);
    const auto lane = lanes_.find(id);
    if (lane == lanes_.end()) return NoLane(id);
    FailPeerOf(lane->second, absl::UnavailableError(absl::StrCat(name_, " closed the lane")));
    lanes_.erase(lane);
    imports_.ForgetLane(id);
    std::erase_if(mappings_, [this](const auto& m) { return !imports_.Find(m.first).ok(); });
    for (auto& [region_id, region] : regions_) region.grants.erase(id);
    std::erase_if(events_, [id](const FabricEvent& e) { return e.lane == id; });
    return absl::OkStatus();
  }

  bool CopiesPosts(LaneId lane) const override {
    return state_->options.copies_posts && static_cast<uint32_t>(lane) % 2 == 1;
  }
  bool HasRoom(LaneId id) const override {
    const std::lock_guard lock(state_->mutex);
    const auto lane = lanes_.find(id);
    return lane == lanes_.end() || lane->second.posts.size() < state_->options.most_posts_in_room;
  }
  absl::Status LaneStatus(LaneId id) const override {
    const std::lock_guard lock(state_->mutex);
    const auto lane = lanes_.find(id);
    return lane == lanes_.end() ? NoLane(id) : lane->second.status;
  }

  absl::Status Post(LaneId id, absl::Span<const Write> writes, std::optional<uint32_t> immediate,
                    uint64_t token) override {
    const std::lock_guard lock(state_->mutex);
    WAYBILL_ASSIGN_OR_RETURN(LoopbackLane * lane, UsableLane(id));
    if (lane->posts.size() >= capabilities_.max_outstanding_posts) {
      return absl::ResourceExhaustedError(absl::StrCat(lane->posts.size(), " posts outstanding"));
    }
    for (const Write& write : writes) WAYBILL_RETURN_IF_ERROR(CheckWrite(id, write));
    lane->posts.push_back({{writes.begin(), writes.end()}, immediate, token});
    state_->TellAll();
    return absl::OkStatus();
  }

  absl::Status Signal(LaneId id, uint32_t immediate) override {
    const std::lock_guard lock(state_->mutex);
    WAYBILL_ASSIGN_OR_RETURN(LoopbackLane * lane, UsableLane(id));
    lane->posts.push_back({{}, immediate, std::nullopt});
    state_->TellAll();
    return absl::OkStatus();
  }

  void Poll(std::vector<FabricEvent>& events) override {
    const std::lock_guard lock(state_->mutex);
    for (uint32_t i = 0; i < state_->options.posts_per_poll; ++i) state_->Advance();
    HandOut(events_, events);
  }

  std::string DescribeLane(LaneId) const override { return "loopback"; }

  void Wait(absl::Time deadline) override {
    std::unique_lock lock(state_->mutex);
    const auto something = [&] { return woken_ || !events_.empty() || state_->AnyReady(); };
    changed_.wait_until(lock, ToSteadyTimePoint(deadline), something);
    woken_ = false;
  }

  void Wake() override {
    const std::lock_guard lock(state_->mutex);
    woken_ = true;
    changed_.notify_all();
  }

  // --- called with the lock held ---

  void Notify() { changed_.notify_all(); }

  bool HasPost(LaneId id) const {
    const auto lane = lanes_.find(id);
    return lane != lanes_.end() && !lane->second.posts.empty() && lane->second.peer != nullptr;
  }

  void ListReady(std::vector<std::pair<Endpoint*, LaneId>>& ready) {
    for (const auto& [id, lane] : lanes_) {
      if (HasPost(id)) ready.emplace_back(this, id);
    }
  }

  void CarryOut(LaneId id) {
    LoopbackLane& lane = lanes_.at(id);
    const PendingPost post = std::move(lane.posts.front());
    lane.posts.pop_front();
    for (const Write& write : post.writes) {
      if (absl::Status status = Copy(id, write); !status.ok()) {
        Endpoint* peer = lane.peer;
        const LaneId peer_lane = lane.peer_lane;
        FailLane(id, status);
        peer->FailLane(peer_lane, status);
        return;
      }
    }
    if (post.immediate) {
      lane.peer->Tell({FabricEvent::Kind::kImmediate, lane.peer_lane, 0, *post.immediate});
    }
    if (post.token) Tell({FabricEvent::Kind::kComplete, id, *post.token});
  }

  void FailLane(LaneId id, const absl::Status& status) {
    const auto lane = lanes_.find(id);
    if (lane == lanes_.end() || !lane->second.status.ok()) return;
    lane->second.status = WithScope(status, Scope::kPeer);
    lane->second.posts.clear();
    lane->second.peer = nullptr;
    Tell({FabricEvent::Kind::kFailed, id});
  }

  void FailAllLanes(const absl::Status& status) {
    for (auto& [id, lane] : lanes_) {
      FailPeerOf(lane, status);
      FailLane(id, status);
    }
  }

 private:
  absl::Status NoRegion(RegionId id) const {
    return absl::NotFoundError(absl::StrCat("no region ", static_cast<uint32_t>(id)));
  }
  absl::Status NoLane(LaneId id) const {
    return absl::NotFoundError(absl::StrCat("no lane ", static_cast<uint32_t>(id)));
  }

  Region AddRegion(LoopbackRegion region) {
    const RegionId id{++last_region_};
    const MemorySpan memory = region.memory;
    regions_.emplace(id, std::move(region));
    return {id, memory};
  }

  absl::StatusOr<LoopbackLane*> UsableLane(LaneId id) {
    const auto lane = lanes_.find(id);
    if (lane == lanes_.end()) return NoLane(id);
    WAYBILL_RETURN_IF_ERROR(lane->second.status);
    if (lane->second.peer == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("lane to ", lane->second.peer_name, " is not connected"));
    }
    return &lane->second;
  }

  absl::StatusOr<LoopbackRegion*> Resolve(LaneId id, const DescribedRegion& described) {
    const auto lane = lanes_.find(id);
    if (lane == lanes_.end() || lane->second.peer == nullptr) {
      return absl::FailedPreconditionError("a region's lane is closed");
    }
    Endpoint* peer = lane->second.peer;
    const auto region = peer->regions_.find(described.region);
    if (region == peer->regions_.end() || peer->incarnation_ != described.incarnation ||
        region->second.generation != described.generation ||
        !region->second.grants.contains(lane->second.peer_lane)) {
      return absl::FailedPreconditionError(
          absl::StrCat("a region of ", lane->second.peer_name,
                       " is not granted on this lane, or was renewed since it was described"));
    }
    return &region->second;
  }

  // Checks what this end can check.
  absl::Status CheckWrite(LaneId id, const Write& write) const {
    const auto source = regions_.find(write.source);
    if (source == regions_.end()) return NoRegion(write.source);
    if (write.size_bytes > capabilities_.max_write_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "write of ", write.size_bytes, " bytes, at most ", capabilities_.max_write_bytes));
    }
    WAYBILL_RETURN_IF_ERROR(imports_.FindOn(id, write.destination).status());
    const MemorySpan& from = source->second.memory;
    if (!Within(from, write.source_offset_bytes, write.size_bytes)) {
      return absl::OutOfRangeError(absl::StrCat(
          "write of ", write.size_bytes, " bytes from offset ", write.source_offset_bytes, " of \"",
          source->second.name, "\", which has ", from.size_bytes));
    }
    return absl::OkStatus();
  }

  static bool Within(const MemorySpan& memory, uint64_t offset_bytes, uint64_t size_bytes) {
    return offset_bytes <= memory.size_bytes && size_bytes <= memory.size_bytes - offset_bytes;
  }

  absl::Status Copy(LaneId id, const Write& write) {
    WAYBILL_RETURN_IF_ERROR(CheckWrite(id, write));  // The source may be gone since it was posted.
    const MemorySpan& from = regions_.at(write.source).memory;
    const absl::StatusOr<LoopbackRegion*> destination =
        Resolve(id, **imports_.FindOn(id, write.destination));
    if (!destination.ok()) return absl::PermissionDeniedError(destination.status().message());
    const MemorySpan& to = (*destination)->memory;
    if (!Within(to, write.destination_offset_bytes, write.size_bytes)) {
      return absl::OutOfRangeError(absl::StrCat(
          "write of ", write.size_bytes, " bytes to offset ", write.destination_offset_bytes,
          " of \"", (*destination)->name, "\", which has ", to.size_bytes));
    }
    if (write.size_bytes > 0) {
      std::memcpy(to.data + write.destination_offset_bytes, from.data + write.source_offset_bytes,
                  write.size_bytes);
    }
    return absl::OkStatus();
  }

  void FailPeerOf(LoopbackLane& lane, const absl::Status& status) {
    if (lane.peer != nullptr) lane.peer->FailLane(lane.peer_lane, status);
  }

  void Tell(FabricEvent event) {
    events_.push_back(event);
    Notify();
  }

  // The number of the endpoint too: who is restarted under the same name is another.
  std::string AddressOf(LaneId lane) const {
    return absl::StrCat(name_, "/", incarnation_, "/", static_cast<uint32_t>(lane));
  }

  const std::shared_ptr<State> state_;
  const std::string name_;
  const uint64_t incarnation_;
  Capabilities capabilities_;
  std::condition_variable changed_;
  bool woken_ = false;
  uint32_t last_region_ = 0;
  uint32_t last_lane_ = 0;
  std::map<RegionId, LoopbackRegion> regions_;
  std::map<LaneId, LoopbackLane> lanes_;
  ImportTable<DescribedRegion> imports_;
  std::multimap<RemoteRegionId, SharedPages> mappings_;
  std::deque<FabricEvent> events_;
};

}  // namespace

void LoopbackNetwork::State::Advance() {
  if (!AnyReady()) return;
  const size_t pick = options.seed == 0 ? 0 : random() % ready.size();
  ready[pick].first->CarryOut(ready[pick].second);
}

bool LoopbackNetwork::State::AnyReady() {
  ready.clear();
  for (auto& [name, endpoint] : endpoints) endpoint->ListReady(ready);
  return !ready.empty();
}

void LoopbackNetwork::State::TellAll() {
  for (auto& [name, endpoint] : endpoints) endpoint->Notify();
}

LoopbackNetwork::LoopbackNetwork(LoopbackOptions options) : state_(std::make_shared<State>()) {
  state_->options = options;
  state_->random.seed(options.seed);
}

LoopbackNetwork::~LoopbackNetwork() = default;

std::unique_ptr<Fabric> LoopbackNetwork::Join(const std::string& name) {
  const std::lock_guard lock(state_->mutex);
  auto endpoint = std::make_unique<Endpoint>(state_, name, ++state_->last_incarnation);
  state_->endpoints[name] = endpoint.get();
  return endpoint;
}

void LoopbackNetwork::Kill(const std::string& name) {
  const std::lock_guard lock(state_->mutex);
  const auto endpoint = state_->endpoints.find(name);
  if (endpoint != state_->endpoints.end()) {
    endpoint->second->FailAllLanes(absl::UnavailableError(name + " is gone"));
  }
}

}  // namespace waybill
