// SPDX-License-Identifier: Apache-2.0

// The memory of a receiver in each mode: what is written to, what is shown, and how to reach it.
#ifndef WAYBILL_CORE_ENGINE_RECEIVER_MEMORY_H_
#define WAYBILL_CORE_ENGINE_RECEIVER_MEMORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/device/device.h"
#include "core/engine/device_targets.h"
#include "core/engine/shown_state.h"
#include "core/fabric/fabric.h"
#include "core/memory/registration_cache.h"
#include "core/protocol/update.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Lives on the progress thread. The fabric and the manifest outlive it.
class ReceiverMemory {
 public:
  // `user_regions`: memory of the inference engine for each region of the manifest, or none.
  //
  //   mode         none given                    given
  //   shadow       two arenas                    refused: an engine's memory cannot be swapped
  //   shadow-copy  refused                       one arena, copied into the engine's memory
  //   in-place     one arena                     the engine's memory itself
  //
  // Arenas are memory of `arena_gpu`, or of the host. A GPU's memory is copied into in shadow-copy.
  // In place, and in arenas on a GPU, the network writes to it, if it can: kFailedPrecondition
  // else, with what is in the way.
  //
  // Everything is reserved, and padding zeroed, when this returns.
  static absl::StatusOr<std::unique_ptr<ReceiverMemory>> Create(
      Fabric* fabric, const Manifest* manifest, Mode mode,
      const std::vector<MemorySpan>& user_regions, std::optional<int> arena_gpu);
  ~ReceiverMemory();

  // Allocates a ledger of so many entries for each buffer; replaces the last plan's.
  absl::Status AllocateLedgers(uint32_t entries);

  uint32_t buffer_count() const { return static_cast<uint32_t>(buffers_.size()); }
  const RegionSpans& regions(uint32_t buffer) const { return buffers_[buffer].regions; }
  const LedgerEntry* ledger(uint32_t buffer) const;

  // Grants a buffer to the peer of `lane`. A buffer that was paused is granted by Renew() instead.
  absl::Status Grant(LaneId lane, uint32_t buffer);
  // Nothing of a paused one can be reached: its address has no descriptors.
  absl::StatusOr<BufferAddress> Describe(uint32_t buffer);

  // Returns true if other pages have been put under a buffer of a GPU's memory, or it was paused:
  // the network does not reach the present pages before Renew(). kFailedPrecondition: a region is
  // no memory any more, or the memory is paused.
  absl::StatusOr<bool> HasMoved(uint32_t buffer);

  // Releases what is registered of the engine's memory on a GPU, whose pages the registration would
  // keep, so that the engine may unmap it. Until Resume() nothing may read or write it.
  void Pause();
  // kFailedPrecondition: it is paused.
  absl::Status MayReceive() const;
  // If the engine's memory has lost its contents, padding is zeroed before the next update.
  void Resume(bool kept) {
    paused_ = false;
    padding_lost_ = padding_lost_ || !kept;
  }
  bool paused() const { return paused_; }

  // Gives a buffer and its ledger fresh pages and keys, which no earlier grant reaches, and grants
  // them to the peers of `lanes`. If this fails, it has to be done again.
  absl::Status Renew(uint32_t buffer, absl::Span<const LaneId> lanes) {
    return Renew(buffer, lanes, renewed_contents_);
  }
  // The same for a buffer whose bytes are needed.
  absl::Status RenewAndKeep(uint32_t buffer, absl::Span<const LaneId> lanes) {
    return Renew(buffer, lanes, Contents::kKept);
  }

  // The device in whose memory updates arrive, or null.
  const std::shared_ptr<Device>& receiving_device() const { return receiving_device_; }
  // Returns true if a region of the buffers is that device's memory.
  bool ArrivesOnDevice(uint32_t region) const { return kinds_[region] == MemoryKind::kDevice; }

  // How many regions a thread best copies at a time: a device is waited for once for all of them.
  uint32_t copies_at_once() const { return device_ == nullptr ? 1 : 64; }
  // [any thread] In shadow-copy: copies regions [first, last) of the buffer to the engine's memory.
  absl::Status CopyToShown(uint32_t first, uint32_t last);

  // The device that has some of the memory, or null.
  const std::shared_ptr<Device>& device() const { return device_; }

  // Bytes of Waybill's own memory, of a host or of a device, in which updates arrive.
  uint64_t arena_bytes(MemoryKind kind) const;

  // What readers see: in shadow-copy the engine's memory, else the buffers.
  const std::vector<RegionSpans>& shown_buffers() const { return shown_; }
  MemoryKind shown_kind(uint32_t region) const { return shown_kinds_[region]; }

 private:
  struct Buffer {
    RegionSpans regions;
    std::vector<Registration> places;
    std::vector<RegionId> fabric_regions;    // Without repeats; the ledger's apart.
    absl::Span<std::byte> arena;             // Where Waybill allocated it.
    std::unique_ptr<DeviceTargets> targets;  // Where the network writes to a GPU's memory.
    Region ledger;
    uint32_t generation = 0;  // How often it was renewed.
  };

  ReceiverMemory(Fabric* fabric, const Manifest* manifest)
      : fabric_(*fabric), manifest_(*manifest), registrations_(fabric) {}

  absl::Status Renew(uint32_t buffer, absl::Span<const LaneId> lanes, Contents contents);
  absl::Status OpenDevice(absl::Span<const MemorySpan> user_regions, std::optional<int> arena_gpu);
  absl::Status AddArenas(uint32_t count, bool on_gpu);
  absl::Status AddArena(absl::string_view name);
  absl::Status AddArenaOnGpu(absl::string_view name);
  absl::Status AddUserBuffer(absl::Span<const MemorySpan> user_regions);
  absl::StatusOr<Registration> RegisterUserRegion(Buffer& buffer, const MemorySpan& memory,
                                                  absl::string_view name);
  absl::Status RegisterMoved(Buffer& buffer);
  // Zeroes the padding in `regions`, which are what is shown.
  absl::Status ZeroPadding(const RegionSpans& regions);
  static bool IsReachable(const Buffer& buffer) {
    return buffer.targets == nullptr || buffer.targets->reachable();
  }
  void Pin();
  void Unpin();

  Fabric& fabric_;
  const Manifest& manifest_;
  Contents renewed_contents_ = Contents::kKept;
  RegistrationCache registrations_;
  std::vector<Buffer> buffers_;
  std::vector<RegionSpans> shown_;

  std::vector<MemoryKind> kinds_;        // Of each region in the buffers.
  std::vector<MemoryKind> shown_kinds_;  // Of each region in what readers see.
  bool paused_ = false;
  bool padding_lost_ = false;

  std::shared_ptr<Device> device_;  // If some of the memory is a device's.
  std::shared_ptr<Device> receiving_device_;
  Stream stream_ = nullptr;
  absl::Span<std::byte> pinned_;  // The arena, where it could be.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_RECEIVER_MEMORY_H_
