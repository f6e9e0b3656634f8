// SPDX-License-Identifier: Apache-2.0

// Wraps any fabric and injects faults by script. A fault hits the nth call or event of its kind,
// counted from when the fault was requested. All calls are counted.
#ifndef WAYBILL_TESTING_FAULTY_FABRIC_FAULTY_FABRIC_H_
#define WAYBILL_TESTING_FAULTY_FABRIC_FAULTY_FABRIC_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/fabric/fabric.h"

namespace waybill {

// The calls that can fail by script.
enum class FabricCall : uint8_t { kAllocate, kGrant, kImport, kMap, kConnect, kPost, kSignal };

// A peer has the name that OpenLane() was given; "" means any peer. Every `nth` begins at 1.
class FaultyFabric final : public Fabric {
 public:
  explicit FaultyFabric(std::unique_ptr<Fabric> inner) : inner_(std::move(inner)) {}

  // --- the script ---

  // Makes the nth such call return `status` and do nothing. For kAllocate, `peer` is the region's
  // name.
  void FailCall(FabricCall call, absl::string_view peer, uint64_t nth, absl::Status status);

  // Changes one byte of the nth write that is not empty, on its way. The source does not change.
  void CorruptWrite(absl::string_view peer, uint64_t nth);

  // Accepts posts and signals, but performs them only once they are released, in order. Their
  // sources are read only then.
  void HoldPosts(absl::string_view peer) { held_peers_.insert(std::string(peer)); }
  void LetPostsGo(absl::string_view peer);

  // Sets what happens to the nth immediate that comes from the peer.
  void DropImmediate(absl::string_view peer, uint64_t nth);
  void DuplicateImmediate(absl::string_view peer, uint64_t nth);
  void ReplaceImmediate(absl::string_view peer, uint64_t nth, uint32_t immediate);
  // Holds back all immediates until they are released.
  void HoldImmediates(absl::string_view peer) { held_immediates_.insert(std::string(peer)); }
  void LetImmediatesGo(absl::string_view peer);
  // Delivers an immediate that the peer never sent.
  void InjectImmediate(absl::string_view peer, uint32_t immediate);

  // Fails the lanes to the peer at both ends. What was mapped stays so until CloseLane().
  void KillLanes(absl::string_view peer, const absl::Status& status);

  // Makes the next Poll() find nothing, as for a process that was stopped and acts before it polls
  // again.
  void SkipNextPoll() { skip_poll_ = true; }

  // Declares these NICs from now on.
  void SetNics(std::vector<FabricNic> nics) { nics_ = std::move(nics); }

  // --- what was seen ---

  uint64_t count(FabricCall call) const;
  // The number of faults that have struck.
  uint64_t faults() const { return faults_; }
  // Returns the latest lane to the peer, or kNone.
  LaneId LaneTo(absl::string_view peer) const;
  // Returns the latest memory that was allocated under the name, or empty memory.
  MemorySpan MemoryOf(absl::string_view name) const;

  // The number of objects that were not released, which grows if somebody leaks them.
  size_t open_lanes() const { return peers_.size(); }
  size_t known_regions() const { return regions_.size(); }
  // The number of posts with data that HoldPosts() holds back on open lanes.
  size_t held_data_posts() const;
  // The number of events that Poll() has returned.
  uint64_t polled_events() const { return polled_events_; }

  // --- Fabric ---

  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  absl::StatusOr<Region> Register(const MemorySpan& memory, absl::string_view name) override;
  absl::StatusOr<Region> RegisterSource(const MemorySpan& memory, absl::string_view name) override;
  absl::Status CheckRead(LaneId lane, RegionId source) const override {
    return inner_->CheckRead(lane, source);
  }
  bool CopiesPosts(LaneId lane) const override { return inner_->CopiesPosts(lane); }
  bool HasRoom(LaneId lane) const override { return inner_->HasRoom(lane); }
  absl::StatusOr<Region> Allocate(uint64_t size_bytes, absl::string_view name) override;
  absl::Status Release(RegionId region) override;
  absl::Status Renew(RegionId region, Contents contents) override;
  absl::Status ReadBack(LaneId lane) override { return inner_->ReadBack(lane); }
  absl::StatusOr<std::string> Describe(RegionId region) override;
  absl::Status Grant(LaneId lane, RegionId region) override;
  absl::StatusOr<RemoteRegionId> Import(LaneId lane, absl::string_view descriptor) override;
  absl::Status EndImport(RemoteRegionId region) override;
  absl::StatusOr<MemorySpan> Map(RemoteRegionId region) override;
  std::vector<FabricNic> Nics() const override { return nics_ ? *nics_ : inner_->Nics(); }
  absl::StatusOr<LaneId> OpenLane(absl::string_view peer, absl::string_view nic) override;
  absl::StatusOr<std::string> LaneAddress(LaneId lane) const override;
  absl::Status ConnectLane(LaneId lane, absl::string_view peer_address) override;
  absl::Status CloseLane(LaneId lane) override;
  absl::Status LaneStatus(LaneId lane) const override;
  std::string DescribeLane(LaneId lane) const override { return inner_->DescribeLane(lane); }
  absl::Status Post(LaneId lane, absl::Span<const Write> writes, std::optional<uint32_t> immediate,
                    uint64_t token) override;
  absl::Status Signal(LaneId lane, uint32_t immediate) override;
  void Poll(std::vector<FabricEvent>& events) override;
  void Wait(absl::Time deadline) override;
  void Wake() override { inner_->Wake(); }
  std::vector<FabricCount> Counts() const override { return inner_->Counts(); }

 private:
  struct CallFault {
    FabricCall call;
    std::string peer;
    uint64_t left;
    absl::Status status;
  };
  enum class Fate { kDrop, kDuplicate, kReplace };
  struct ImmediateFault {
    Fate fate;
    std::string peer;
    uint64_t left;
    uint32_t replacement;
  };
  struct WriteFault {
    std::string peer;
    uint64_t left;
  };
  struct Held {
    LaneId lane;
    std::vector<Write> writes;
    std::optional<uint32_t> immediate;
    std::optional<uint64_t> token;  // nullopt for a signal.
  };
  struct Unmap {
    uint64_t size_bytes;
    void operator()(std::byte* data) const;
  };
  using Mapping = std::unique_ptr<std::byte, Unmap>;
  struct KnownRegion {
    std::string name;
    MemorySpan memory;
  };

  // Counts a call and returns the status of the fault that hits it.
  absl::Status Meet(FabricCall call, absl::string_view peer);
  std::string PeerOf(LaneId lane) const;
  bool IsHeld(LaneId lane) const;
  absl::Status Forward(const Held& held);
  // Posts the write from a copy with one byte changed.
  absl::Status Corrupt(LaneId lane, Write& write);
  void TakeImmediate(const FabricEvent& event);

  std::unique_ptr<Fabric> inner_;
  std::map<LaneId, std::string> peers_;  // Open lanes.
  std::map<LaneId, absl::Status> killed_;
  std::map<RegionId, KnownRegion> regions_;
  std::map<RemoteRegionId, LaneId> imports_;
  std::multimap<RemoteRegionId, Mapping> mappings_;
  std::map<FabricCall, uint64_t> counts_;
  uint64_t faults_ = 0;
  uint64_t polled_events_ = 0;
  bool skip_poll_ = false;
  std::optional<std::vector<FabricNic>> nics_;

  std::vector<CallFault> call_faults_;
  std::vector<ImmediateFault> immediate_faults_;
  std::vector<WriteFault> write_faults_;
  std::set<std::string> held_peers_;
  std::set<std::string> held_immediates_;
  std::deque<Held> held_posts_;
  std::deque<FabricEvent> held_events_;
  std::deque<FabricEvent> ready_;  // Events for the next Poll().
  std::vector<FabricEvent> polled_;
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_FAULTY_FABRIC_FAULTY_FABRIC_H_
