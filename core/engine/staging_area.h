// Staging slots, and the threads that fill them: the engines of one trainer share both.
#ifndef WAYBILL_CORE_ENGINE_STAGING_AREA_H_
#define WAYBILL_CORE_ENGINE_STAGING_AREA_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "core/fabric/fabric.h"
#include "core/memory/staging_ring.h"
#include "core/protocol/send_schedule.h"
#include "core/stage/work_pool.h"

namespace waybill {

struct TrainerEngineOptions {
  uint64_t ring_bytes = 32 << 20;
  uint64_t chunk_bytes = 1 << 20;  // Also the size of a staging slot.
  uint32_t stage_threads = 1;      // With 0 the progress thread stages.
};

// Lives on the progress thread; its threads stage.
class StagingArea {
 public:
  // Allocates the ring from the fabric, which outlives the area.
  //
  // kInvalidArgument: chunks that are not a multiple of 4 KiB, or a ring of not even one;
  // kResourceExhausted: no memory.
  static absl::StatusOr<std::unique_ptr<StagingArea>> Create(Fabric* fabric,
                                                             const TrainerEngineOptions& options);

  const TrainerEngineOptions& options() const { return options_; }
  const StagingRing& ring() const { return ring_; }
  SlotPool& slots() { return slots_; }
  const SlotPool& slots() const { return slots_; }
  WorkPool& threads() { return threads_; }
  // Returns how many bytes of the ring were in use at a time, at most.
  uint64_t high_water_bytes() const { return slots_.high_water() * ring_.slot_bytes(); }

 private:
  StagingArea(const TrainerEngineOptions& options, const StagingRing& ring)
      : options_(options),
        ring_(ring),
        slots_(ring.slot_count()),
        threads_(options.stage_threads) {}

  const TrainerEngineOptions options_;
  const StagingRing ring_;
  SlotPool slots_;
  WorkPool threads_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_STAGING_AREA_H_
