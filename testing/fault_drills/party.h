// SPDX-License-Identifier: Apache-2.0

// One endpoint of a drill. It sends streams of writes whose bytes identify them, and checks every
// byte that it receives. The test process has one, and so has each peer process.
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

// A stream: writes of `write_bytes`, the kth to slot k % slots, with the immediate k.
struct Shape {
  uint32_t slots = 8;  // Also the maximum number of incomplete posts.
  uint32_t write_bytes = 4096;
  uint64_t count = 0;  // The number of writes. 0: until the lane is dead.

  uint64_t size_bytes() const { return uint64_t{slots} * write_bytes; }
};

// Bytes that no stream contains.
constexpr std::byte kPoison{0x99};     // Fills a source that must not be read any more.
constexpr std::byte kUntouched{0xC3};  // Fills a destination to which nothing may come.

struct LaneState {
  uint64_t connected = 0;
  uint64_t posted = 0;
  uint64_t complete = 0;
  uint64_t immediates = 0;
  uint64_t wrong = 0;    // Immediates out of order, or without their bytes.
  uint64_t failed = 0;   // The number of kFailed events.
  uint64_t refused = 0;  // Streams that ended because a post was refused.
};

// A region that receives a stream, and its descriptor for the peer.
struct Destination {
  RegionId region = RegionId::kNone;
  std::string descriptor;
};

class Party {
 public:
  explicit Party(std::unique_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}
  ~Party();

  Fabric& fabric() { return *fabric_; }
  // Polls, checks what has come, and posts what can be posted.
  void Turn();
  void Wait(absl::Duration most);

  absl::StatusOr<LaneId> Open(absl::string_view peer) { return fabric_->OpenLane(peer, ""); }
  absl::Status Close(LaneId lane);
  LaneState State(LaneId lane) { return lanes_[lane].state; }

  // Grants memory on the lane, surrounded by bytes that must not change, and checks what comes.
  absl::StatusOr<Destination> Receive(LaneId lane, const Shape& shape);
  absl::StatusOr<Destination> GrantAgain(LaneId lane, RegionId region);
  void Fill(RegionId region, std::byte value);
  uint64_t CountOf(RegionId region, std::byte value) const;
  bool SurroundingsAreIntact(RegionId region) const;

  // Begins a stream once the descriptor can be imported.
  absl::Status Send(LaneId lane, const std::string& descriptor, const Shape& shape);
  // Fills the source of the lane's stream with kPoison. The lane may be closed.
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
  // Checks the bytes of the lane's kth write, whose immediate has come.
  void CheckBytes(Lane& lane, uint64_t k);
  void Pump(LaneId id, Lane& lane);
  bool Holds(const Memory& memory, uint64_t k) const;

  std::unique_ptr<Fabric> fabric_;
  std::map<LaneId, Lane> lanes_;
  std::map<RegionId, std::unique_ptr<Memory>> memories_;
};

}  // namespace waybill::drills

#endif  // WAYBILL_TESTING_FAULT_DRILLS_PARTY_H_
