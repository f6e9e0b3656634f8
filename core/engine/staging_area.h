// SPDX-License-Identifier: Apache-2.0

// The resources that the engines of one sender share: registered tensors, staging slots, and the
// threads that fill the slots.
#ifndef WAYBILL_CORE_ENGINE_STAGING_AREA_H_
#define WAYBILL_CORE_ENGINE_STAGING_AREA_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/device/device.h"
#include "core/engine/device_slots.h"
#include "core/engine/shared_chunks.h"
#include "core/fabric/fabric.h"
#include "core/memory/registration_cache.h"
#include "core/memory/staging_ring.h"
#include "core/plan/chunks.h"
#include "core/protocol/send_schedule.h"
#include "core/stage/work_pool.h"

namespace waybill {

// A choice whether versions are sent from two images, so that only the changes since the version
// before are posted to receivers that have it, where that is shorter.
enum class Changes : uint8_t {
  kNever = 0,
  kAuto = 1,  // To groups that are updated sooner so than with everything.
  kAlways = 2,
};

constexpr absl::string_view Name(Changes changes) {
  return changes == Changes::kNever ? "never" : changes == Changes::kAuto ? "auto" : "always";
}

struct SenderEngineOptions {
  uint64_t ring_bytes = 32 << 20;
  uint64_t chunk_bytes = kChunkBytes;  // Also the size of a staging slot.
  uint32_t stage_threads = 1;          // With 0 the progress thread stages.
  // Routes that need no conversion, and whose contiguous runs are at least this long, are sent from
  // the tensors themselves.
  uint64_t direct_run_bytes = kDirectRunBytes;
  // Versions are sent from a copy of the tensors (image.h).
  bool images = false;
  Changes changes = Changes::kNever;
  // Chunks of at least this size are announced, so that the receiver verifies them while later ones
  // arrive.
  uint64_t announced_bytes = 64 << 10;

  bool has_images() const { return images || changes != Changes::kNever; }
  // Returns the options for tensors on a GPU. A thread waits for the GPU once for a quarter of the
  // ring; while one thread waits, others have work queued.
  static SenderEngineOptions ForGpu() { return {.ring_bytes = 128 << 20, .stage_threads = 4}; }
};

// Whether all bytes of an update are present when it starts.
enum class SourcesAre : uint8_t {
  kThere,
  kArriving,  // SenderEngine::Release() and GiveDigest() report what has arrived.
};

// The versions that a sender has in memory, as the memory of each region of its manifest. The
// memory must stay as it is during an update.
struct VersionsInMemory {
  absl::Span<const MemorySpan> newest;  // Empty: the regions that were given with the plan.
  uint64_t image = 0;                   // Counts the images that `newest` has held.
  uint64_t version_before = 0;          // 0: there is none.
  absl::Span<const MemorySpan> before;
};

// Lives on the progress thread, except that its threads stage.
class StagingArea {
 public:
  // Allocates the ring from the fabric, which outlives the area.
  //
  // kInvalidArgument: the chunk size is not a multiple of 4 KiB, or the ring is smaller than a
  // chunk; kResourceExhausted: out of memory.
  static absl::StatusOr<std::unique_ptr<StagingArea>> Create(Fabric* fabric,
                                                             const SenderEngineOptions& options);

  // Registers memory that updates are sent from, so that it need not be staged. If that fails, the
  // memory is staged, and why_staged() says why. The memory must stay valid until the area is
  // destroyed. `name` appears in why_staged().
  void AddSource(const MemorySpan& memory, absl::string_view name);
  // Registers GPU memory again that has new pages. Call it before an update. kFailedPrecondition: a
  // source is no longer mapped.
  absl::Status RenewSources();
  // Returns how often a source was registered again.
  uint64_t source_renewals() const { return source_renewals_; }
  // Returns the registration of that memory, or kNone.
  Registration FindSource(const MemorySpan& memory) const;
  // Returns the slots in memory of the sources' GPU; null if there is no GPU, or no network can
  // read the slots.
  const DeviceSlots* device_slots() const { return device_slots_.get(); }
  // Returns why device_slots() is null although the sources lie in GPU memory; empty otherwise.
  const std::string& why_no_device_slots() const { return why_no_device_slots_; }
  // Returns why the first unregistered source is not registered; empty if all are.
  const std::string& why_staged() const { return why_staged_; }

  const SenderEngineOptions& options() const { return options_; }
  const StagingRing& ring() const { return ring_; }
  SlotPool& slots() { return slots_; }
  const SlotPool& slots() const { return slots_; }
  // The chunks that senders of images pack for each other.
  SharedChunks& shared_chunks() { return shared_chunks_; }
  WorkPool& threads() { return threads_; }
  // Returns the largest number of bytes of the ring that were ever in use.
  uint64_t high_water_bytes() const { return slots_.high_water() * ring_.slot_bytes(); }

 private:
  StagingArea(Fabric* fabric, const SenderEngineOptions& options, const StagingRing& ring)
      : fabric_(*fabric),
        options_(options),
        registrations_(fabric, RegistrationCache::Use::kRead),
        ring_(ring),
        slots_(ring.slot_count()),
        shared_chunks_(fabric),
        threads_(options.stage_threads) {}

  struct Source {
    MemorySpan memory;
    std::string name;
    Registration registration;  // kNone if the memory is staged.
    uint64_t pages = 0;         // The value of Device::PagesOf() at registration, for GPU memory.
  };
  absl::Status Register(Source& source);

  Fabric& fabric_;
  const SenderEngineOptions options_;
  std::shared_ptr<Device> device_;  // The sources' device; null if they are in host memory.
  std::unique_ptr<DeviceSlots> device_slots_;
  RegistrationCache registrations_;
  std::map<const std::byte*, Source> sources_;  // By first byte.
  uint64_t source_renewals_ = 0;
  std::string why_staged_;
  std::string why_no_device_slots_;
  const StagingRing ring_;
  SlotPool slots_;
  SharedChunks shared_chunks_;
  WorkPool threads_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_STAGING_AREA_H_
