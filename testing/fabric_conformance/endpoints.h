// SPDX-License-Identifier: Apache-2.0

// Endpoints of one network in one process. Tests poll them in turn until a condition holds.
#ifndef WAYBILL_TESTING_FABRIC_CONFORMANCE_ENDPOINTS_H_
#define WAYBILL_TESTING_FABRIC_CONFORMANCE_ENDPOINTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/fabric/fabric.h"

namespace waybill::testing_fabric {

// A fabric and all its events so far.
class Endpoint {
 public:
  Endpoint(std::string name, std::unique_ptr<Fabric> fabric)
      : name_(std::move(name)), fabric_(std::move(fabric)) {}

  const std::string& name() const { return name_; }
  Fabric& fabric() { return *fabric_; }
  bool alive() const { return fabric_ != nullptr; }
  void Destroy() { fabric_.reset(); }

  // Polls once and returns the number of new events.
  size_t Poll();
  const std::vector<FabricEvent>& events() const { return events_; }

  size_t Count(FabricEvent::Kind kind, LaneId lane) const;
  bool IsComplete(LaneId lane, uint64_t token) const;
  // Returns the immediates that arrived on a lane, in order.
  std::vector<uint32_t> Immediates(LaneId lane) const;
  bool HasFailed(LaneId lane) const { return Count(FabricEvent::Kind::kFailed, lane) > 0; }

 private:
  std::string name_;
  std::unique_ptr<Fabric> fabric_;
  std::vector<FabricEvent> events_;
  std::vector<FabricEvent> polled_;
};

// Both ends of a lane between two endpoints.
struct Lane {
  Endpoint* a = nullptr;
  Endpoint* b = nullptr;
  LaneId at_a = LaneId::kNone;
  LaneId at_b = LaneId::kNone;
};

// A region of one endpoint, imported by the other end of a lane.
struct Reached {
  Region region;
  std::string descriptor;
  RemoteRegionId remote = RemoteRegionId::kNone;
};

class Endpoints {
 public:
  using MakeFabric = std::function<std::unique_ptr<Fabric>(const std::string& name)>;

  // `settle`: how long no event must come until none is under way. Zero for a network that delivers
  // within the call.
  explicit Endpoints(MakeFabric make_fabric, absl::Duration settle = absl::ZeroDuration())
      : make_fabric_(std::move(make_fabric)), settle_(settle) {}

  // Adds an endpoint. It lives as long as this object; its fabric may be destroyed before.
  Endpoint& Join(const std::string& name);

  // Polls all endpoints in turn until `done` returns true. Returns false after some seconds.
  bool Until(const std::function<bool()>& done);
  // Polls until no more events come. Use it to check that something does not happen, and Until() to
  // wait for something that must happen.
  void UntilQuiet();

  // Returns a connected lane. Fails the test if it does not connect.
  Lane Connect(Endpoint& a, Endpoint& b);
  Lane Open(Endpoint& a, Endpoint& b);

  // Returns memory of b to which a may write on the lane.
  Reached AllocateAtB(const Lane& lane, uint64_t size_bytes);
  // Grants a region of b, and imports it at a.
  Reached GrantToA(const Lane& lane, const Region& region);

  // Returns memory of a from which it may post on the lane, filled with distinguishable bytes.
  Region SourceAtA(const Lane& lane, uint64_t size_bytes, uint32_t seed = 1);

  // Posts at a. Returns true once the post is complete.
  bool PostAndComplete(const Lane& lane, const std::vector<Write>& writes,
                       std::optional<uint32_t> immediate = std::nullopt);
  // Posts at a something that must be refused at once or fail the lane. Returns the error.
  absl::Status PostAndFail(const Lane& lane, const std::vector<Write>& writes);

  // Returns a new token, so that a test can tell completions apart.
  uint64_t NextToken() { return ++last_token_; }

 private:
  // Returns true if any endpoint had an event.
  bool PollAll();

  MakeFabric make_fabric_;
  absl::Duration settle_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  uint64_t last_token_ = 1000;
};

// Returns a byte that depends on its place and on the seed.
constexpr std::byte ByteAt(uint64_t i, uint32_t seed) {
  return static_cast<std::byte>((i * 167 + (i >> 8) * 59 + seed * 31 + 1) & 0xFF);
}
void Fill(const MemorySpan& memory, uint32_t seed);
bool AllAre(const MemorySpan& memory, std::byte value);

}  // namespace waybill::testing_fabric

#endif  // WAYBILL_TESTING_FABRIC_CONFORMANCE_ENDPOINTS_H_
