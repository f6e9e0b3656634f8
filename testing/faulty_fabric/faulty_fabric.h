// Any fabric, with faults by script. Nothing is left to chance: a fault hits the nth call or event
// of its kind, counted from when it was asked for, and every call is counted.
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

// The calls that can be made to fail.
enum class FabricCall : uint8_t { kAllocate, kGrant, kImport, kMap, kConnect, kPost, kPublish };

// A peer is named as OpenLane() named it; "" is any. All `nth` begin at 1.
class FaultyFabric final : public Fabric {
 public:
  explicit FaultyFabric(std::unique_ptr<Fabric> inner) : inner_(std::move(inner)) {}

  // --- the script ---

  // The nth such call returns `status`, and does nothing. Of kAllocate the peer is the name.
  void FailCall(FabricCall call, absl::string_view peer, uint64_t nth, absl::Status status);

  // Changes one byte of the nth write that is not empty, on its way: the source stays as it is.
  void CorruptWrite(absl::string_view peer, uint64_t nth);

  // Accepts posts and publishes, and carries them out when they are let go, in order. Their
  // sources are read only then.
  void HoldPosts(absl::string_view peer) { held_peers_.insert(std::string(peer)); }
  void LetPostsGo(absl::string_view peer);

  // What becomes of the nth immediate that comes from the peer.
  void DropImmediate(absl::string_view peer, uint64_t nth);
  void DuplicateImmediate(absl::string_view peer, uint64_t nth);
  void ReplaceImmediate(absl::string_view peer, uint64_t nth, uint32_t immediate);
  // Keeps back all that come, until they are let go.
  void HoldImmediates(absl::string_view peer) { held_immediates_.insert(std::string(peer)); }
  void LetImmediatesGo(absl::string_view peer);
  // One that the peer never sent.
  void InjectImmediate(absl::string_view peer, uint32_t immediate);

  // The lanes to the peer are dead at both ends.
  void KillLanes(absl::string_view peer, const absl::Status& status);

  // --- what was seen ---

  uint64_t count(FabricCall call) const;
  // Faults that have struck.
  uint64_t faults() const { return faults_; }
  // Of the latest lane that was opened to the peer; kNone where there is none.
  LaneId LaneTo(absl::string_view peer) const;
  // Of what was allocated under the name, the latest; empty where nothing was.
  MemorySpan MemoryOf(absl::string_view name) const;

  // --- Fabric ---

  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  absl::StatusOr<Region> Register(const MemorySpan& memory, absl::string_view name) override;
  absl::StatusOr<Region> Allocate(uint64_t size_bytes, absl::string_view name) override;
  absl::Status Release(RegionId region) override;
  absl::Status Renew(RegionId region, Contents contents) override;
  absl::StatusOr<std::string> Describe(RegionId region) override;
  absl::Status Grant(LaneId lane, RegionId region) override;
  absl::StatusOr<RemoteRegionId> Import(LaneId lane, absl::string_view descriptor) override;
  absl::StatusOr<MemorySpan> Map(RemoteRegionId region) override;
  std::vector<FabricNic> Nics() const override { return inner_->Nics(); }
  absl::StatusOr<LaneId> OpenLane(absl::string_view peer, absl::string_view nic) override;
  absl::StatusOr<std::string> LaneAddress(LaneId lane) const override;
  absl::Status ConnectLane(LaneId lane, absl::string_view peer_address) override;
  absl::Status CloseLane(LaneId lane) override;
  absl::Status LaneStatus(LaneId lane) const override;
  std::string DescribeLane(LaneId lane) const override { return inner_->DescribeLane(lane); }
  absl::Status Post(LaneId lane, absl::Span<const Write> writes, std::optional<uint32_t> immediate,
                    uint64_t token) override;
  absl::Status Publish(LaneId lane, uint32_t immediate) override;
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
    std::optional<uint64_t> token;  // None: a publish.
  };
  struct KnownRegion {
    std::string name;
    MemorySpan memory;
  };

  // Counts a call; the status of the fault that it meets.
  absl::Status Meet(FabricCall call, absl::string_view peer);
  std::string PeerOf(LaneId lane) const;
  bool IsHeld(LaneId lane) const;
  absl::Status Forward(const Held& held);
  // Posts the write from a copy with one byte changed.
  absl::Status Corrupt(LaneId lane, Write& write);
  void TakeImmediate(const FabricEvent& event);

  std::unique_ptr<Fabric> inner_;
  std::map<LaneId, std::string> peers_;  // Of lanes that are open.
  std::map<LaneId, absl::Status> killed_;
  std::map<RegionId, KnownRegion> regions_;
  std::map<RemoteRegionId, LaneId> imports_;
  std::map<FabricCall, uint64_t> counts_;
  uint64_t faults_ = 0;

  std::vector<CallFault> call_faults_;
  std::vector<ImmediateFault> immediate_faults_;
  std::vector<WriteFault> write_faults_;
  std::set<std::string> held_peers_;
  std::set<std::string> held_immediates_;
  std::deque<Held> held_posts_;
  std::deque<FabricEvent> held_events_;
  std::deque<FabricEvent> ready_;  // To be told by Poll().
  std::vector<FabricEvent> polled_;
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_FAULTY_FABRIC_FAULTY_FABRIC_H_
