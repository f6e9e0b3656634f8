// SPDX-License-Identifier: Apache-2.0

// The memory of a receiver in each mode: the buffers in which updates arrive, the memory that is
// shown, and the addresses of both for the network.
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

// Lives on the progress thread. The fabric and the manifest must outlive the object.
class ReceiverMemory {
 public:
  // `user_regions`: memory of the inference engine for each region of the manifest, or none.
  //
  //   mode         none given                    given
  //   shadow       two arenas                    refused: an engine's memory cannot be swapped
  //   shadow-copy  refused                       one arena, copied into the engine's memory
  //   in-place     one arena                     the engine's memory itself
  //
  // Arenas lie in memory of `arena_gpu`, or of the host without it. In shadow-copy the engine's
  // memory may be on a GPU and is copied into. In place, and in arenas on a GPU, the network writes
  // to GPU memory. kFailedPrecondition: the network cannot write there; the error says why.
  //
  // All memory is allocated, and padding is zeroed, when this returns.
  static absl::StatusOr<std::unique_ptr<ReceiverMemory>> Create(
      Fabric* fabric, const Manifest* manifest, Mode mode,
      const std::vector<MemorySpan>& user_regions, std::optional<int> arena_gpu);
  ~ReceiverMemory();

  // Allocates a ledger with `entries` entries for each buffer, in place of the last plan's ledger.
  absl::Status AllocateLedgers(uint32_t entries);

  uint32_t buffer_count() const { return static_cast<uint32_t>(buffers_.size()); }
  const RegionSpans& regions(uint32_t buffer) const { return buffers_[buffer].regions; }
  const LedgerEntry* ledger(uint32_t buffer) const;

  // Grants a buffer to the peer of `lane`. Renew() grants a buffer that was paused.
  absl::Status Grant(LaneId lane, uint32_t buffer);
  // Returns the address of a buffer. A paused buffer cannot be reached: its address has no
  // descriptors.
  absl::StatusOr<BufferAddress> Describe(uint32_t buffer);

  // Returns true if a buffer in GPU memory has new pages, or was paused: the network cannot reach
  // the present pages before Renew(). kFailedPrecondition: a region is no longer mapped, or the
  // memory is paused.
  absl::StatusOr<bool> HasMoved(uint32_t buffer);

  // Releases the registrations of the engine's GPU memory, which would keep its pages, so that the
  // engine may unmap it. Until Resume() nothing may read or write the memory.
  void Pause();
  // kFailedPrecondition: the memory is paused.
  absl::Status MayReceive() const;
  // If the engine's memory has lost its contents, padding is zeroed before the next update.
  void Resume(bool kept) {
    paused_ = false;
    padding_lost_ = padding_lost_ || !kept;
  }
  bool paused() const { return paused_; }

  // Gives a buffer and its ledger fresh pages and keys, which no earlier grant reaches, and grants
  // them to the peers of `lanes`. If Renew() fails, call it again before the buffer is used.
  absl::Status Renew(uint32_t buffer, absl::Span<const LaneId> lanes) {
    return Renew(buffer, lanes, renewed_contents_);
  }
  // Like Renew(), but always keeps the buffer's bytes.
  absl::Status RenewAndKeep(uint32_t buffer, absl::Span<const LaneId> lanes) {
    return Renew(buffer, lanes, Contents::kKept);
  }

  // The device in whose memory updates arrive; null if they arrive in host memory.
  const std::shared_ptr<Device>& receiving_device() const { return receiving_device_; }
  // Returns true if a region's updates arrive in memory of receiving_device().
  bool ArrivesOnDevice(uint32_t region) const { return kinds_[region] == MemoryKind::kDevice; }

  // Returns the number of regions to pass to one CopyToShown() call, which waits for a device once
  // for all of its regions.
  uint32_t copies_at_once() const { return device_ == nullptr ? 1 : 64; }
  // [any thread] In shadow-copy: copies regions [first, last) of the buffer to the engine's memory.
  absl::Status CopyToShown(uint32_t first, uint32_t last);

  // The device that holds some of the memory, or null.
  const std::shared_ptr<Device>& device() const { return device_; }

  // Returns the size of Waybill's own buffers, of a host or of a device, in which updates arrive.
  uint64_t arena_bytes(MemoryKind kind) const;

  // The memory that snapshots read: in shadow-copy the engine's memory, otherwise the buffers.
  const std::vector<RegionSpans>& shown_buffers() const { return shown_; }
  MemoryKind shown_kind(uint32_t region) const { return shown_kinds_[region]; }

 private:
  struct Buffer {
    RegionSpans regions;
    std::vector<Registration> places;
    std::vector<RegionId> fabric_regions;  // Each region once, without the ledger's region.
    absl::Span<std::byte> arena;  // The buffer's memory if Waybill allocated it; otherwise empty.
    // The registrations if the network writes to GPU memory; otherwise null.
    std::unique_ptr<DeviceTargets> targets;
    Region ledger;
    uint32_t generation = 0;  // The number of renewals.
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
  // Zeroes the padding in the shown memory `regions`.
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

  std::vector<MemoryKind> kinds_;        // By region, of the buffers.
  std::vector<MemoryKind> shown_kinds_;  // By region, of the shown memory.
  bool paused_ = false;
  bool padding_lost_ = false;

  std::shared_ptr<Device> device_;  // Null if all memory is the host's.
  std::shared_ptr<Device> receiving_device_;
  Stream stream_ = nullptr;
  absl::Span<std::byte> pinned_;  // The arena, if it could be pinned.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_RECEIVER_MEMORY_H_
