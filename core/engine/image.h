// SPDX-License-Identifier: Apache-2.0

// A copy of a trainer's tensors, from which a version is sent while the tensors change already.
#ifndef WAYBILL_CORE_ENGINE_IMAGE_H_
#define WAYBILL_CORE_ENGINE_IMAGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/device/device.h"
#include "core/fabric/fabric.h"
#include "core/stage/work_pool.h"
#include "core/tensor/manifest.h"
#include "core/tensor/selection.h"

namespace waybill {

// Whether an image keeps the version before the newest as well, which takes as much memory again.
enum class VersionsKept : uint8_t { kNewest, kTwo };

// Lives on the progress thread; threads of its own copy.
class Image {
 public:
  // Reserves memory for a copy of each region: host memory for regions in host memory, and memory
  // of the same GPU for regions on a GPU. `regions` is the memory of each region of the manifest,
  // and outlives the image. So many threads copy; with
  // 0, BeginCopy() does. `wake` is called on any thread when a copy has ended.
  //
  // kResourceExhausted: there is not enough memory. kInvalidArgument: the regions are on several
  // GPUs. kUnimplemented: two versions are to be kept, and a region is on a GPU.
  static absl::StatusOr<std::unique_ptr<Image>> Create(Manifest manifest,
                                                       absl::Span<const MemorySpan> regions,
                                                       VersionsKept kept, uint32_t threads,
                                                       std::function<void()> wake);
  // Nobody may read the image any more.
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  // Returns the copies of the regions, in their order. If two versions are kept, BeginCopy()
  // exchanges them with regions_before().
  const std::vector<MemorySpan>& regions() const { return copies_; }

  // The number of the version before the newest, and its regions in the same order. The number is 0
  // if the version is not kept or there was none, or if a copy of either failed. The regions are
  // empty if one version is kept.
  uint64_t version_before() const { return version_before_; }
  const std::vector<MemorySpan>& regions_before() const { return before_; }

  // Returns the number of copies that were begun.
  uint64_t copies() const { return copies_begun_; }

  // Begins to copy the regions, which must not change before the copy has ended, as this version:
  // over the version before, if two are kept. No copy is going on, and nobody reads the image.
  //
  // If not everything is selected, two versions are kept. What is not selected, and what is left of
  // the elements that have changed least, is then as in the version before; without that,
  // everything is copied. Of each 65,536 elements of a shard in the order of memory the largest
  // changes are taken; elements of other types than F32, F16 and BF16, and quantised ones, are
  // taken whole.
  void BeginCopy(uint64_t version, const Selection& selection = {});
  // Returns how the copy ended, once; nullopt while it goes on, and if none does. kInternal: the
  // GPU failed.
  std::optional<absl::Status> TakeEnd();
  // Gives up the copy that is going on, if any. No thread reads the regions when it returns.
  void Cancel();

  // Returns what the copy that was begun last is made of; see Selection::Compose().
  uint64_t composition() const { return composition_; }
  // Returns the tensors that were selected for it, and that the manifest does not have.
  const std::vector<std::string>& unknown_tensors() const { return unknown_tensors_; }
  // Return what was left out of all copies: elements that had changed, and the bytes of tensors
  // that were not selected.
  uint64_t left_out_elements() const { return left_out_elements_.load(std::memory_order_relaxed); }
  uint64_t unselected_bytes() const { return unselected_bytes_.load(std::memory_order_relaxed); }

 private:
  // A part of a region that one task copies.
  struct Piece {
    uint32_t region = 0;
    uint64_t offset_bytes = 0;
    uint64_t size_bytes = 0;
  };

  // Bytes of a shard, in the order of memory, that one task takes over.
  struct ShardPart {
    uint32_t shard = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  Image(Manifest manifest, uint32_t threads, std::function<void()> wake);
  absl::Status Reserve(absl::Span<const MemorySpan> regions, VersionsKept kept);
  void ForgetVersions() { version_ = version_before_ = 0; }
  // Divides the shards among tasks.
  void Divide();
  uint32_t device_tasks() const { return device_pieces_.empty() ? 0 : 1; }
  std::byte* To(const Piece& piece) const {
    return copies_[piece.region].data + piece.offset_bytes;
  }
  const std::byte* From(const Piece& piece) const {
    return tensors_[piece.region].data + piece.offset_bytes;
  }
  void Copy(uint32_t task);
  absl::Status CopyOnDevice();
  void TakeOver(const ShardPart& part);

  const Manifest manifest_;
  const std::function<void()> wake_;
  std::vector<MemorySpan> tensors_;
  std::vector<MemorySpan> copies_;
  std::vector<MemorySpan> before_;  // Empty if one version is kept.
  uint64_t copies_begun_ = 0;
  uint64_t version_ = 0;  // 0: unknown.
  uint64_t version_before_ = 0;
  uint64_t composition_ = 0;
  std::vector<std::string> unknown_tensors_;
  // Of a copy that takes over a selection; empty for one that takes everything.
  std::vector<ShardPart> parts_;
  std::vector<bool> selected_;  // By tensor.
  uint32_t at_most_ppm_ = Selection::kMillion;
  std::atomic<uint64_t> left_out_elements_ = 0;
  std::atomic<uint64_t> unselected_bytes_ = 0;
  std::vector<Piece> host_pieces_;    // One task each.
  std::vector<Piece> device_pieces_;  // All of them are one task.
  void* host_memory_ = nullptr;
  uint64_t host_bytes_ = 0;
  std::shared_ptr<Device> device_;  // Null if no region is on a GPU, like the next two.
  void* device_memory_ = nullptr;
  Stream stream_ = nullptr;
  WorkPool::Batch batch_;
  bool copying_ = false;
  std::atomic<bool> ended_ = false;
  absl::Status device_status_;  // How the GPU's copies ended. Written by their task before ended_.
  WorkPool pool_;  // Last, so that its threads end before the other members are destroyed.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_IMAGE_H_
