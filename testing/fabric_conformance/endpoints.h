// Endpoints of one network in one process, polled in turn until what a test waits for has happened.
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

// A fabric, and all that its Poll() ever told.
class Endpoint {
 public:
  Endpoint(std::string name, std::unique_ptr<Fabric> fabric)
      : name_(std::move(name)), fabric_(std::move(fabric)) {}

  const std::string& name() const { return name_; }
  Fabric& fabric() { return *fabric_; }
  bool alive() const { return fabric_ != nullptr; }
  void Destroy() { fabric_.reset(); }

  // How many events that was.
  size_t Poll();
  const std::vector<FabricEvent>& events() const { return events_; }

  size_t Count(FabricEvent::Kind kind, LaneId lane) const;
  bool IsComplete(LaneId lane, uint64_t token) const;
  // Those of a lane, in the order in which they came.
  std::vector<uint32_t> Immediates(LaneId lane) const;
  bool HasFailed(LaneId lane) const { return Count(FabricEvent::Kind::kFailed, lane) > 0; }

 private:
  std::string name_;
  std::unique_ptr<Fabric> fabric_;
  std::vector<FabricEvent> events_;
  std::vector<FabricEvent> polled_;
};

// A lane between two endpoints, with both of its ends.
struct Lane {
  Endpoint* a = nullptr;
  Endpoint* b = nullptr;
  LaneId at_a = LaneId::kNone;
  LaneId at_b = LaneId::kNone;
};

// A region of one endpoint that the other end of a lane has imported.
struct Reached {
  Region region;
  std::string descriptor;
  RemoteRegionId remote = RemoteRegionId::kNone;
};

class Endpoints {
 public:
  using MakeFabric = std::function<std::unique_ptr<Fabric>(const std::string& name)>;

  // `settle`: how long nothing has to come until nothing is under way; zero where a network
  // delivers within the call.
  explicit Endpoints(MakeFabric make_fabric, absl::Duration settle = absl::ZeroDuration())
      : make_fabric_(std::move(make_fabric)), settle_(settle) {}

  // Stays until the end, though its fabric may be destroyed before.
  Endpoint& Join(const std::string& name);

  // Polls all in turn. False where it does not happen within some seconds.
  bool Until(const std::function<bool()>& done);
  // Polls until nothing comes any more. For what must not happen: what has to happen is awaited by
  // Until().
  void UntilQuiet();

  // A connected lane; a failure of the test where it does not connect.
  Lane Connect(Endpoint& a, Endpoint& b);
  Lane Open(Endpoint& a, Endpoint& b);

  // Memory of b's that a may write to by way of the lane.
  Reached AllocateAtB(const Lane& lane, uint64_t size_bytes);
  // Grants it, and imports it at a.
  Reached GrantToA(const Lane& lane, const Region& region);

  // Memory of a's that it may post from on the lane, with bytes that tell where they are from.
  Region SourceAtA(const Lane& lane, uint64_t size_bytes, uint32_t seed = 1);

  // Posts at a; true when it is complete.
  bool PostAndComplete(const Lane& lane, const std::vector<Write>& writes,
                       std::optional<uint32_t> immediate = std::nullopt);
  // Posts at a what must not work: it is refused at once, or the lane fails. How it was refused.
  absl::Status PostAndFail(const Lane& lane, const std::vector<Write>& writes);

  // Fresh tokens, for posts whose completion a test tells apart.
  uint64_t NextToken() { return ++last_token_; }

 private:
  // True where any endpoint told something.
  bool PollAll();

  MakeFabric make_fabric_;
  absl::Duration settle_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  uint64_t last_token_ = 1000;
};

// A byte that depends on its place and on the seed.
constexpr std::byte ByteAt(uint64_t i, uint32_t seed) {
  return static_cast<std::byte>((i * 167 + (i >> 8) * 59 + seed * 31 + 1) & 0xFF);
}
void Fill(const MemorySpan& memory, uint32_t seed);
bool AllAre(const MemorySpan& memory, std::byte value);

}  // namespace waybill::testing_fabric

#endif  // WAYBILL_TESTING_FABRIC_CONFORMANCE_ENDPOINTS_H_
