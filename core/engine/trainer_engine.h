// The sending side of one update: stages a trainer's routes and sees them to their workers.
//
// Commands in, events out; it never speaks to the controller. Everything is called on one thread,
// the progress thread, which calls Step() whenever the fabric may have something; nothing here
// blocks.
#ifndef WAYBILL_CORE_ENGINE_TRAINER_ENGINE_H_
#define WAYBILL_CORE_ENGINE_TRAINER_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/engine/maxima_exchange.h"
#include "core/engine/timeline.h"
#include "core/engine/update.h"
#include "core/fabric/fabric.h"
#include "core/plan/plan_codec.h"
#include "core/stage/stage_piece.h"

namespace waybill {

struct TrainerEngineOptions {
  uint64_t ring_bytes = 32 << 20;
  uint64_t chunk_bytes = 1 << 20;  // Also the size of a staging slot.
  uint32_t stage_threads = 1;      // 0: the progress thread stages.
};

struct TrainerEvent {
  enum class Kind : uint8_t {
    kConnected = 1,   // Every lane of the plan carries.
    kPeerFailed = 2,  // The lane to `worker` is dead. What goes to the others goes on.
    kSent = 3,  // The update's writes are complete, but for failed peers': the tensors may change.
    kStopped = 4,  // After Abort(): nothing of the update can land any more.
    // The lane to `trainer`, which owns parts of blocks that this one quantises, is dead. What
    // needs its maxima is not sent.
    kCoOwnerFailed = 5,
    // NaNs or infinities are among what was quantised, and Start() was told to refuse them; or, in
    // `status`, what a device failed of. Nothing that was sent can be shown. Abort() is to come.
    kRefused = 6,
  };
  Kind kind = Kind::kConnected;
  UpdateId update;       // Of kSent and kStopped.
  uint32_t worker = 0;   // Of kPeerFailed, with why.
  uint32_t trainer = 0;  // Of kCoOwnerFailed, with why.
  absl::Status status;
  TransferCounts counts;  // Of kSent.
};

// NaNs and infinities among what is quantised.
enum class NonFiniteRule : uint8_t { kKept, kRefused };

// What a trainer needs to reach one worker.
struct WorkerAddress {
  uint32_t worker = 0;
  std::vector<std::string> lane_addresses;  // In the order of the lanes.
  std::vector<BufferAddress> buffers;
};

// What other ranks need to reach a trainer.
struct TrainerOffers {
  std::vector<LaneOffer> lanes;      // To workers.
  std::vector<LaneOffer> co_owners;  // To trainers that own blocks together with this one.
  std::string mailbox;               // Where those write; empty where there are none.
};

// One worker's part in the start of an update.
struct StartTarget {
  uint32_t worker = 0;
  uint32_t buffer_index = 0;
  // Where the buffer is now, if it was renewed since the last update.
  std::optional<BufferAddress> renewed;
};

class TrainerEngine {
 public:
  using EventSink = std::function<void(const TrainerEvent&)>;

  // `fabric` outlives the engine; `sink` is called on the progress thread, from within calls.
  static absl::StatusOr<std::unique_ptr<TrainerEngine>> Create(Fabric* fabric,
                                                               const TrainerEngineOptions& options,
                                                               EventSink sink);
  virtual ~TrainerEngine() = default;

  // Replaces the plan: lanes of the old one are closed, those of the new one opened and returned.
  // `sources`: the memory of each region of the trainer's manifest; it stays valid until the next
  // plan, and unchanged from Start() to the event that ends the update.
  // `lanes`: of each worker; one that is not named has one lane on any NIC.
  // kInvalidArgument: a plan that does not fit together, or sources on several devices.
  virtual absl::StatusOr<TrainerOffers> SetPlan(RankPlan plan, std::vector<MemorySpan> sources,
                                                const std::vector<PeerLanes>& lanes) = 0;

  // kConnected follows, or kPeerFailed for each worker, kCoOwnerFailed for each trainer that cannot
  // be reached.
  virtual absl::Status Connect(absl::Span<const WorkerAddress> workers,
                               absl::Span<const CoOwnerAddress> co_owners = {}) = 0;

  // Sends everything, and trades maxima, which may be needed where nothing of this trainer's is
  // sent (`targets` is empty then); kSent follows, or kStopped if it is aborted before.
  // kFailedPrecondition: not connected, or an update is going on.
  virtual absl::Status Start(const UpdateId& update, Digests digests,
                             absl::Span<const StartTarget> targets,
                             NonFiniteRule rule = NonFiniteRule::kKept) = 0;

  // Ends the update, whatever is left of it. kStopped follows, in any case, when all that was begun
  // is quiescent.
  virtual void Abort(uint32_t sequence) = 0;

  // The same, at once: lanes with writes outstanding are closed. Nothing of ours reads the sources,
  // or can land, when it returns.
  virtual void StopNow() = 0;

  // Does what can be done now.
  virtual void Step() = 0;

  // Of the update at hand, so far.
  virtual TransferCounts counts() const = 0;
  virtual uint64_t ring_high_water_bytes() const = 0;
  // Of the update that was sent last.
  virtual const Timeline& timeline() const = 0;
  // Of the update that was sent last: shards of the manifest with NaNs or infinities among what was
  // quantised.
  virtual std::vector<NonFinite> FindNonFinite() const = 0;
  // How each worker is reached, for people.
  virtual std::vector<LaneReport> ReportLanes() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_TRAINER_ENGINE_H_
