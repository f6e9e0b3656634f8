// One endpoint in a drill: it sends streams of writes that tell where they are from, and looks at
// every byte of those that it receives. The test's own process has one, and each peer process too.
#ifndef WAYBILL_TESTING_FAULT_DRILLS_PARTY_H_
#define WAYBILL_TESTING_FAULT_DRILLS_PARTY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/fabric/fabric.h"

namespace waybill::drills {

// Of a stream: writes of `write_bytes`, the kth to slot k % slots, with the immediate k.
struct Shape {
  uint32_t slots = 8;  // No more posts than that are on the way.
  uint32_t write_bytes = 4096;
  uint64_t count = 0;  // Of writes; 0: until the lane is dead.

  uint64_t size_bytes() const { return uint64_t{slots} * write_bytes; }
};

// Never a byte of a stream.
constexpr std::byte kPoison{0x99};     // What a source is filled with when it may not be read.
constexpr std::byte kUntouched{0xC3};  // What a destination is filled with when nothing may come.

struct LaneState {
  uint64_t connected = 0;
  uint64_t posted = 0;
  uint64_t complete = 0;
  uint64_t immediates = 0;
  uint64_t wrong = 0;    // Immediates out of turn, or without their bytes.
  uint64_t failed = 0;   // kFailed events.
  uint64_t refused = 0;  // The stream ended because a post was refused.
};

// A region that is written to, and how it is called at the peer.
struct Destination {
  RegionId region = RegionId::kNone;
  std::string descriptor;
};

class Party {
 public:
  explicit Party(std::unique_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}
  ~Party();

  Fabric& fabric() { return *fabric_; }
  // Polls, looks at what has come, and posts what can be posted.
  void Turn();
  void Wait(absl::Duration most);

  absl::StatusOr<LaneId> Open(absl::string_view peer) { return fabric_->OpenLane(peer, ""); }
  absl::Status Close(LaneId lane);
  LaneState State(LaneId lane) { return lanes_[lane].state; }

  // Memory with bytes around it that nobody may write, granted on the lane: what comes is checked.
  absl::StatusOr<Destination> Receive(LaneId lane, const Shape& shape);
  absl::StatusOr<Destination> GrantAgain(LaneId lane, RegionId region);
  void Fill(RegionId region, std::byte value);
  uint64_t CountOf(RegionId region, std::byte value) const;
  bool SurroundingsAreIntact(RegionId region) const;

  // Begins a stream as soon as the descriptor can be imported.
  absl::Status Send(LaneId lane, const std::string& descriptor, const Shape& shape);
  // Of the stream on a lane, whether open or closed meanwhile.
  void PoisonSource(LaneId lane);

 private:
  struct Memory {
    std::vector<std::byte> bytes;
    MemorySpan region;
    Shape shape;
  };
  struct Stream {
    Shape shape;
    std::string descriptor;
    Region source;
    RemoteRegionId remote = RemoteRegionId::kNone;
  };
  struct Lane {
    LaneState state;
    RegionId inbox = RegionId::kNone;
    std::unique_ptr<Stream> stream;
    bool closed = false;
  };

  void Take(const FabricEvent& event);
  void Pump(LaneId id, Lane& lane);
  bool Holds(const Memory& memory, uint64_t k) const;

  std::unique_ptr<Fabric> fabric_;
  std::map<LaneId, Lane> lanes_;
  std::map<RegionId, std::unique_ptr<Memory>> memories_;
  std::vector<FabricEvent> events_;
};

}  // namespace waybill::drills

#endif  // WAYBILL_TESTING_FAULT_DRILLS_PARTY_H_
