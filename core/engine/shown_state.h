// SPDX-License-Identifier: Apache-2.0

// Which version a receiver shows, and who is reading it.
#ifndef WAYBILL_CORE_ENGINE_SHOWN_STATE_H_
#define WAYBILL_CORE_ENGINE_SHOWN_STATE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace waybill {

// The memory of each region of the receiver's manifest, in one buffer.
using RegionSpans = std::vector<absl::Span<std::byte>>;

// Thread-safe. Outlives no snapshot: the state behind it is shared.
class ShownState {
 public:
  // A reader's hold: while it lives, its bytes are those of its version. Movable, any thread.
  class Snapshot {
   public:
    Snapshot(Snapshot&&) = default;
    Snapshot& operator=(Snapshot&& other) noexcept;
    ~Snapshot();

    uint64_t version() const { return version_; }
    // Region i of the receiver's manifest.
    absl::Span<const std::byte> region(uint32_t i) const { return (*regions_)[i]; }

   private:
    friend class ShownState;
    struct Shared;
    Snapshot(std::shared_ptr<Shared> shared, uint32_t buffer, uint64_t hold, uint64_t version,
             const RegionSpans* regions);
    void Release();

    std::shared_ptr<Shared> shared_;
    uint32_t buffer_ = 0;
    uint64_t hold_ = 0;
    uint64_t version_ = 0;
    const RegionSpans* regions_ = nullptr;
  };

  // `buffers`: those that can be shown. `released` is called, on any thread, when a hold ends.
  ShownState(std::vector<RegionSpans> buffers, std::function<void()> released);

  // `holder` says who reads, for the error that a waiting update may end in.
  //
  // kFailedPrecondition: nothing is shown yet, or the memory is paused or being written in place.
  absl::StatusOr<Snapshot> Take(absl::string_view holder);

  // Shows `version`, which lies in `buffer`.
  void Show(uint32_t buffer, uint64_t version);

  // Marks the memory as dirty unless a snapshot holds the buffer, in one step, so that no reader
  // comes between. Returns whether it did.
  bool BeginWriting(uint32_t buffer);
  // Marks the shown memory as dirty or clean. Take() fails while it is dirty. Show() cleans it.
  void SetDirty(bool dirty);

  // Until Resume() nothing can be read. kFailedPrecondition: somebody reads, who is named.
  absl::Status Pause();
  void Resume();

  bool anything_shown() const;
  uint64_t version() const;  // 0 where nothing is shown.
  uint32_t buffer() const;
  bool dirty() const;

  // Who holds the buffer, as "snapshot of version 3 by eval"; empty where nobody does.
  std::string DescribeHolders(uint32_t buffer) const;

 private:
  std::shared_ptr<Snapshot::Shared> shared_;
};

using Snapshot = ShownState::Snapshot;

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_SHOWN_STATE_H_
