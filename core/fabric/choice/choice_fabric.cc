// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/choice/choice_fabric.h"

#include <poll.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fabric/choice/lane_choice.h"
#include "core/fabric/choice/pace.h"
#include "core/fabric/choice/region_set.h"
#include "core/fabric/choice/tagged_texts.h"
#include "core/fabric/import_table.h"
#include "core/fabric/path_failure.h"
#include "core/fabric/polled_clock.h"
#include "core/fabric/progress.h"
#include "core/fabric/waker.h"

namespace waybill {
namespace choice {
namespace {

constexpr uint32_t kProposal = 0;  // Known by its place: it is the first on its way.
constexpr size_t kEventsAtOnce = 256;

// A lane by one member fabric.
struct Way {
  LaneId lane = LaneId::kNone;  // None: there is no such way, and why.
  absl::Status why_none;
  // The first immediate and the first completion of a way belong to the proposals.
  bool proposal_came = false;
  bool proposal_done = false;
};

// The failures of lanes between a NIC and a peer.
struct PathTrouble {
  uint32_t failures = 0;
  absl::Time last;
  std::string why;
};

struct ChoiceLane {
  std::string peer;
  std::string nic;
  std::vector<Way> ways;  // By member.
  std::string address;
  std::optional<LaneChoice> choice;  // From ConnectLane() on.
  bool connected = false;
  uint32_t outstanding_posts = 0;
  absl::Status status;  // Not OK: dead.
};

class ChoiceFabric final : public Fabric {
 public:
  ChoiceFabric(std::vector<ChoiceMember> members, std::string missing, const ChoiceOptions& options)
      : members_(std::move(members)),
        missing_(std::move(missing)),
        options_(options),
        clock_(options.now),
        pace_(options.rate_limit),
        regions_(PointersTo(members_)),
        lane_of_way_(members_.size()),
        lanes_carried_(members_.size()),
        posted_bytes_(members_.size()) {
    polled_.reserve(kEventsAtOnce);
    capabilities_ = members_[0].fabric->capabilities();
    for (const ChoiceMember& member : members_) {
      const Capabilities& one = member.fabric->capabilities();
      capabilities_.can_map = capabilities_.can_map || one.can_map;
      capabilities_.source_must_be_granted =
          capabilities_.source_must_be_granted || one.source_must_be_granted;
      capabilities_.max_write_bytes = std::min(capabilities_.max_write_bytes, one.max_write_bytes);
      capabilities_.max_outstanding_posts =
          std::min(capabilities_.max_outstanding_posts, one.max_outstanding_posts);
    }
  }

  absl::Status Start() {
    WAYBILL_RETURN_IF_ERROR(waker_.Start());
    waits_.push_back({.fd = waker_.fd(), .events = POLLIN, .revents = 0});
    for (const ChoiceMember& member : members_) {
      waits_.push_back({.fd = member.fabric->wait_descriptor(), .events = POLLIN, .revents = 0});
    }
    return absl::OkStatus();
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  absl::StatusOr<Region> Register(const MemorySpan& memory, absl::string_view name) override {
    return regions_.Register(memory, name);
  }
  absl::StatusOr<Region> RegisterSource(const MemorySpan& memory, absl::string_view name) override {
    return regions_.RegisterSource(memory, name);
  }
  absl::StatusOr<Region> Allocate(uint64_t size_bytes, absl::string_view name) override {
    return regions_.Allocate(size_bytes, name);
  }
  absl::Status Release(RegionId region) override { return regions_.Release(region); }
  absl::Status Renew(RegionId region, Contents contents) override {
    return regions_.Renew(region, contents);
  }
  absl::StatusOr<std::string> Describe(RegionId region) override {
    return regions_.Describe(region);
  }

  absl::Status Grant(LaneId id, RegionId region) override {
    WAYBILL_ASSIGN_OR_RETURN(const Carrier way, UsableWay(id));
    WAYBILL_ASSIGN_OR_RETURN(const RegionId inner, regions_.At(way.member, region));
    return way.fabric->Grant(way.lane, inner);
  }

  absl::StatusOr<RemoteRegionId> Import(LaneId id, absl::string_view descriptor) override {
    WAYBILL_ASSIGN_OR_RETURN(const Carrier way, UsableWay(id));
    WAYBILL_ASSIGN_OR_RETURN(const TaggedTexts texts, Split(descriptor));
    for (const auto& [name, text] : texts) {
      if (name != way.fabric->capabilities().name) continue;
      WAYBILL_ASSIGN_OR_RETURN(const RemoteRegionId inner, way.fabric->Import(way.lane, text));
      return imports_.Add(id, inner);
    }
    return absl::FailedPreconditionError(
        absl::StrCat("import a region: \"", descriptor.substr(0, 100), "\" is not reached by ",
                     way.fabric->capabilities().name));
  }

  absl::StatusOr<MemorySpan> Map(RemoteRegionId region) override {
    WAYBILL_ASSIGN_OR_RETURN(const auto* import, imports_.Find(region));
    WAYBILL_ASSIGN_OR_RETURN(const Carrier way, UsableWay(import->lane));
    return way.fabric->Map(import->target);
  }

  absl::Status EndImport(RemoteRegionId region) override {
    WAYBILL_ASSIGN_OR_RETURN(const auto import, imports_.Remove(region));
    const absl::StatusOr<Carrier> way = UsableWay(import.lane);
    return way.ok() ? way->fabric->EndImport(import.target) : absl::OkStatus();
  }

  std::vector<FabricNic> Nics() const override {
    std::vector<FabricNic> nics;
    for (size_t i = 0; i < members_.size(); ++i) {
      if (!regions_.unusable(i).ok()) continue;
      for (FabricNic& nic : members_[i].fabric->Nics()) nics.push_back(std::move(nic));
    }
    return nics;
  }

  absl::StatusOr<LaneId> OpenLane(absl::string_view peer, absl::string_view nic) override {
    ChoiceLane lane{.peer = std::string(peer), .nic = std::string(nic)};
    const LaneId id{++last_lane_};
    TaggedTexts addresses;
    for (size_t i = 0; i < members_.size(); ++i) {
      Way& way = lane.ways.emplace_back();
      way.why_none = regions_.unusable(i);
      if (way.why_none.ok()) way.why_none = CheckPath(i, lane);
      if (!way.why_none.ok()) continue;
      Fabric& fabric = *members_[i].fabric;
      absl::StatusOr<LaneId> opened = fabric.OpenLane(peer, fabric.Nics().empty() ? "" : nic);
      way.why_none = opened.status();
      if (!opened.ok()) continue;
      way.lane = *opened;
      lane_of_way_[i][*opened] = id;
      WAYBILL_ASSIGN_OR_RETURN(std::string address, fabric.LaneAddress(*opened));
      addresses.emplace_back(fabric.capabilities().name, std::move(address));
    }
    if (addresses.empty()) return lane.ways[0].why_none;
    lane.address = Join(addresses);
    lanes_.emplace(id, std::move(lane));
    return id;
  }

  absl::StatusOr<std::string> LaneAddress(LaneId id) const override {
    const auto lane = lanes_.find(id);
    if (lane == lanes_.end()) return NoLane(id);
    return lane->second.address;
  }

  absl::Status ConnectLane(LaneId id, absl::string_view peer_address) override {
    WAYBILL_ASSIGN_OR_RETURN(ChoiceLane * lane, FindLane(id));
    WAYBILL_ASSIGN_OR_RETURN(const TaggedTexts theirs, Split(peer_address));
    if (lane->choice) {
      return absl::FailedPreconditionError(
          absl::StrCat("connect to ", lane->peer, ": this lane has a peer"));
    }
    std::vector<std::string> names;
    names.reserve(members_.size());
    for (const ChoiceMember& member : members_) names.push_back(member.fabric->capabilities().name);
    lane->choice.emplace(names, lane->address < peer_address, options_.patience);
    for (size_t i = 0; i < members_.size(); ++i) {
      const auto there = std::find_if(theirs.begin(), theirs.end(),
                                      [&](const auto& text) { return text.first == names[i]; });
      absl::Status status = lane->ways[i].why_none;
      if (status.ok() && there == theirs.end()) {
        status = absl::UnavailableError(
            "the other end does not offer it: its `fabric` option forces another, or it has none "
            "or "
            "avoids it");
      }
      if (status.ok()) status = members_[i].fabric->ConnectLane(lane->ways[i].lane, there->second);
      if (!status.ok()) lane->choice->OnFailed(i, status);
    }
    ++choosing_;
    Advance(id, *lane);
    return absl::OkStatus();
  }

  absl::Status CloseLane(LaneId id) override {
    const auto found = lanes_.find(id);
    if (found == lanes_.end()) return NoLane(id);
    ChoiceLane& lane = found->second;
    if (lane.choice && !lane.connected && lane.status.ok()) --choosing_;
    for (size_t i = 0; i < lane.ways.size(); ++i) CloseWay(lane, i);
    lanes_.erase(found);
    imports_.ForgetLane(id);
    std::erase_if(events_, [id](const FabricEvent& e) { return e.lane == id; });
    return absl::OkStatus();
  }

  absl::Status CheckRead(LaneId id, RegionId source) const override {
    const std::optional<Carrier> way = CarrierFor(id);
    if (!way) return NoLane(id);
    WAYBILL_ASSIGN_OR_RETURN(const RegionId inner, regions_.At(way->member, source));
    return way->fabric->CheckRead(way->lane, inner);
  }

  absl::Status ReadBack(LaneId id) override {
    const std::optional<Carrier> way = CarrierFor(id);
    if (!way) return NoLane(id);
    return way->fabric->ReadBack(way->lane);
  }

  bool CopiesPosts(LaneId id) const override {
    const std::optional<Carrier> way = CarrierFor(id);
    return way && way->fabric->CopiesPosts(way->lane);
  }
  bool HasRoom(LaneId id) const override {
    const std::optional<Carrier> way = CarrierFor(id);
    if (!way) return true;
    if (IsPaced(*way) && !pace_.Allows(options_.now())) return false;
    return way->fabric->HasRoom(way->lane);
  }

  absl::Status LaneStatus(LaneId id) const override {
    const auto lane = lanes_.find(id);
    return lane == lanes_.end() ? NoLane(id) : lane->second.status;
  }

  std::string DescribeLane(LaneId id) const override {
    const auto lane = lanes_.find(id);
    if (lane == lanes_.end()) return "closed";
    if (!lane->second.connected) return "not connected";
    const Carrier way = CarrierOf(lane->second);
    const std::string why = lane->second.choice->WhyNoBetter();
    return absl::StrCat(way.fabric->DescribeLane(way.lane),
                        why.empty() && missing_.empty() ? "" : "; not ", why,
                        why.empty() || missing_.empty() ? "" : "; ", missing_);
  }

  absl::Status Post(LaneId id, absl::Span<const Write> writes, std::optional<uint32_t> immediate,
                    uint64_t token) override {
    WAYBILL_ASSIGN_OR_RETURN(const Carrier way, UsableWay(id));
    inner_writes_.assign(writes.begin(), writes.end());
    for (Write& write : inner_writes_) {
      WAYBILL_ASSIGN_OR_RETURN(const RemoteRegionId* inner, imports_.FindOn(id, write.destination));
      write.destination = *inner;
      WAYBILL_ASSIGN_OR_RETURN(write.source, regions_.At(way.member, write.source));
    }
    auto& outstanding_posts = lanes_.at(id).outstanding_posts;
    if (outstanding_posts >= capabilities_.max_outstanding_posts) {
      return absl::Status(absl::StatusCode::kResourceExhausted, "");  // No text, no allocation.
    }
    WAYBILL_RETURN_IF_ERROR(way.fabric->Post(way.lane, inner_writes_, immediate, token));
    ++outstanding_posts;
    uint64_t bytes = 0;
    for (const Write& write : inner_writes_) bytes += write.size_bytes;
    posted_bytes_[way.member] += bytes;
    if (IsPaced(way)) pace_.Count(bytes, options_.now());
    return absl::OkStatus();
  }

  absl::Status Signal(LaneId id, uint32_t immediate) override {
    WAYBILL_ASSIGN_OR_RETURN(const Carrier way, UsableWay(id));
    return way.fabric->Signal(way.lane, immediate);
  }

  void Poll(std::vector<FabricEvent>& events) override {
    polled_time_ = clock_.Look();
    for (size_t i = 0; i < members_.size(); ++i) {
      polled_.clear();
      members_[i].fabric->Poll(polled_);
      for (const FabricEvent& event : polled_) Take(i, event);
    }
    if (choosing_ > 0) GiveUpOnSlowWays();
    HandOut(events_, events);
  }

  void Wait(absl::Time deadline) override {
    bool sleep = events_.empty();
    for (const ChoiceMember& member : members_) sleep = member.fabric->ArmWait() && sleep;
    // When the limit lets the next post begin, all lanes have room again.
    if (pace_.next() > options_.now()) deadline = std::min(deadline, pace_.next());
    if (sleep) poll(waits_.data(), waits_.size(), MillisecondsUntil(deadline));
    waker_.Forget();
  }

  void Wake() override { waker_.Wake(); }

  std::vector<FabricCount> Counts() const override {
    std::vector<FabricCount> counts = {{"fallbacks", fallbacks_}};
    for (size_t i = 0; i < members_.size(); ++i) {
      const std::string& name = members_[i].fabric->capabilities().name;
      counts.push_back({absl::StrCat(name, ".lanes"), lanes_carried_[i]});
      counts.push_back({absl::StrCat(name, ".posted_bytes"), posted_bytes_[i]});
      for (const FabricCount& count : members_[i].fabric->Counts()) {
        counts.push_back({absl::StrCat(name, ".", count.name), count.value});
      }
    }
    return counts;
  }

 private:
  // The way that carries a lane.
  struct Carrier {
    size_t member = 0;
    Fabric* fabric = nullptr;
    LaneId lane = LaneId::kNone;
  };
  bool IsPaced(const Carrier& way) const {
    return pace_.is_limited() && !members_[way.member].within_host;
  }
  // Returns the way that carries a connected lane.
  Carrier CarrierOf(const ChoiceLane& lane) const {
    const size_t member = *lane.choice->chosen();
    return {member, members_[member].fabric.get(), lane.ways[member].lane};
  }
  // Returns the same for a lane's number, or nullopt if no connected lane has it.
  std::optional<Carrier> CarrierFor(LaneId id) const {
    const auto lane = lanes_.find(id);
    if (lane == lanes_.end() || !lane->second.connected) return std::nullopt;
    return CarrierOf(lane->second);
  }

  static std::vector<Fabric*> PointersTo(const std::vector<ChoiceMember>& members) {
    std::vector<Fabric*> pointers;
    pointers.reserve(members.size());
    for (const ChoiceMember& member : members) pointers.push_back(member.fabric.get());
    return pointers;
  }

  absl::Status NoLane(LaneId id) const {
    return absl::NotFoundError(absl::StrCat("no lane ", static_cast<uint32_t>(id)));
  }

  absl::StatusOr<ChoiceLane*> FindLane(LaneId id) {
    const auto lane = lanes_.find(id);
    if (lane == lanes_.end()) return NoLane(id);
    return &lane->second;
  }

  absl::StatusOr<Carrier> UsableWay(LaneId id) {
    WAYBILL_ASSIGN_OR_RETURN(ChoiceLane * lane, FindLane(id));
    WAYBILL_RETURN_IF_ERROR(lane->status);
    if (!lane->connected) {
      return absl::FailedPreconditionError(
          absl::StrCat("lane to ", lane->peer, " is not connected"));
    }
    return CarrierOf(*lane);
  }

  // --- what has happened ---

  void Take(size_t member, const FabricEvent& event) {
    const auto known = lane_of_way_[member].find(event.lane);
    if (known == lane_of_way_[member].end()) return;
    const LaneId id = known->second;
    ChoiceLane& lane = lanes_.at(id);
    Way& way = lane.ways[member];
    if (!lane.choice) {
      // A peer that was faster to connect may be gone before this end connects. Nothing else comes
      // so early.
      if (event.kind == FabricEvent::Kind::kFailed) {
        way.why_none = members_[member].fabric->LaneStatus(event.lane);
      }
      return;
    }
    switch (event.kind) {
      case FabricEvent::Kind::kConnected:
        lane.choice->OnUp(member, polled_time_);
        break;
      case FabricEvent::Kind::kFailed:
        if (lane.connected) {
          if (member == lane.choice->chosen()) Fail(id, lane, way);
          return;
        }
        lane.choice->OnFailed(member, members_[member].fabric->LaneStatus(event.lane));
        break;
      case FabricEvent::Kind::kComplete:
        if (std::exchange(way.proposal_done, true)) {
          --lane.outstanding_posts;
          return Tell(id, event);
        }
        lane.choice->OnProposalSent(member);
        break;
      case FabricEvent::Kind::kImmediate:
        if (!std::exchange(way.proposal_came, true)) {
          lane.choice->OnProposal(member);
          break;
        }
        // The user's, of an end that has our answer already.
        lane.choice->OnProposalSent(member);
        Advance(id, lane);
        return Tell(id, event);
    }
    Advance(id, lane);
  }

  void Tell(LaneId id, FabricEvent event) {
    event.lane = id;
    events_.push_back(event);
  }

  void Fail(LaneId id, ChoiceLane& lane, const Way& way) {
    const size_t member = *lane.choice->chosen();
    lane.status = members_[member].fabric->LaneStatus(way.lane);
    if (IsPathFailure(lane.status)) {
      PathTrouble& trouble = troubles_[{member, lane.nic, lane.peer}];
      if (IsOver(trouble)) trouble.failures = 0;
      ++trouble.failures;
      trouble.last = options_.now();
      trouble.why = std::string(lane.status.message());
    }
    events_.push_back({.kind = FabricEvent::Kind::kFailed, .lane = id});
  }

  bool IsOver(const PathTrouble& trouble) const {
    return options_.now() - trouble.last >= options_.avoid_path_for;
  }

  // Not OK: the lane should not go this way. A network may carry the probe of a lane and then fail
  // under load, for ever again in each term.
  absl::Status CheckPath(size_t member, const ChoiceLane& lane) const {
    if (member + 1 == members_.size()) return absl::OkStatus();  // Nothing else carries it.
    const auto found = troubles_.find({member, lane.nic, lane.peer});
    if (found == troubles_.end() || IsOver(found->second) ||
        found->second.failures < options_.most_path_failures) {
      return absl::OkStatus();
    }
    return absl::UnavailableError(absl::StrCat(
        "avoided for ", absl::FormatDuration(options_.avoid_path_for), ", because ",
        found->second.failures, " lanes have failed, the last one at ",
        absl::FormatTime(found->second.last, absl::UTCTimeZone()), ": ", found->second.why));
  }

  // --- choosing ---

  // Does what the choice asks for, now that it has heard something.
  void Advance(LaneId id, ChoiceLane& lane) {
    if (lane.connected || !lane.status.ok()) return;
    LaneChoice& choice = *lane.choice;
    for (std::optional<size_t> i = choice.TakeToPropose(); i; i = choice.TakeToPropose()) {
      const absl::Status status =
          members_[*i].fabric->Post(lane.ways[*i].lane, {}, kProposal, /*token=*/0);
      if (!status.ok()) choice.OnFailed(*i, status);
    }
    if (choice.chosen()) return Settle(id, lane);
    if (choice.status().ok()) return;
    --choosing_;
    lane.status =
        WithScope(While(absl::StrCat("connect to ", lane.peer), choice.status()), Scope::kPeer);
    events_.push_back({.kind = FabricEvent::Kind::kFailed, .lane = id});
  }

  void Settle(LaneId id, ChoiceLane& lane) {
    --choosing_;
    lane.connected = true;
    const size_t chosen = *lane.choice->chosen();
    ++lanes_carried_[chosen];
    bool fell_back = false;
    for (size_t i = 0; i < members_.size(); ++i) {
      if (i == chosen) continue;
      const bool was_there = lane.ways[i].lane != LaneId::kNone && !members_[i].within_host;
      fell_back = fell_back || (i < chosen && was_there);
      CloseWay(lane, i);
    }
    fallbacks_ += fell_back ? 1 : 0;
    events_.push_back({.kind = FabricEvent::Kind::kConnected, .lane = id});
  }

  void GiveUpOnSlowWays() {
    for (auto& [id, lane] : lanes_) {
      if (!lane.choice || lane.connected || !lane.status.ok()) continue;
      lane.choice->OnTime(polled_time_);
      Advance(id, lane);
    }
  }

  void CloseWay(ChoiceLane& lane, size_t member) {
    Way& way = lane.ways[member];
    if (way.lane == LaneId::kNone) return;
    lane_of_way_[member].erase(way.lane);
    (void)members_[member].fabric->CloseLane(std::exchange(way.lane, LaneId::kNone));
  }

  const std::vector<ChoiceMember> members_;
  const std::string missing_;
  const ChoiceOptions options_;
  PolledClock clock_;
  mutable Pace pace_;                       // Notes in HasRoom() that a post waits.
  absl::Time polled_time_ = clock_.Look();  // At the last poll.
  Capabilities capabilities_;
  RegionSet regions_;
  uint32_t last_lane_ = 0;
  std::map<LaneId, ChoiceLane> lanes_;
  std::map<std::tuple<size_t, std::string, std::string>, PathTrouble>
      troubles_;                                                  // By member, NIC and peer.
  std::vector<absl::flat_hash_map<LaneId, LaneId>> lane_of_way_;  // By member; its lane to ours.
  uint32_t choosing_ = 0;                                         // Lanes that are not settled.
  ImportTable<RemoteRegionId> imports_;  // Each by its number at the fabric that carries the lane.
  std::vector<FabricEvent> events_;
  Waker waker_;
  std::vector<pollfd> waits_;
  uint64_t fallbacks_ = 0;
  std::vector<uint64_t> lanes_carried_;
  std::vector<uint64_t> posted_bytes_;  // By member.
  std::vector<FabricEvent> polled_;     // Scratch, as is what follows.
  std::vector<Write> inner_writes_;
};

}  // namespace
}  // namespace choice

absl::StatusOr<std::unique_ptr<Fabric>> MakeChoiceFabric(std::vector<ChoiceMember> members,
                                                         std::string missing,
                                                         const ChoiceOptions& options) {
  if (members.empty()) {
    return absl::UnavailableError(absl::StrCat("there is no fabric to choose from: ", missing));
  }
  for (const ChoiceMember& member : members) {
    if (member.fabric->wait_descriptor() < 0) {
      return absl::InvalidArgumentError(absl::StrCat("fabric ", member.fabric->capabilities().name,
                                                     " cannot wait together with others"));
    }
  }
  auto fabric =
      std::make_unique<choice::ChoiceFabric>(std::move(members), std::move(missing), options);
  WAYBILL_RETURN_IF_ERROR(fabric->Start());
  return fabric;
}

}  // namespace waybill
