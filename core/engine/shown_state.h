// SPDX-License-Identifier: Apache-2.0

// Keeps which version a receiver shows, and which snapshots are held.
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

// Thread-safe. A snapshot may outlive the object, since it shares the state.
class ShownState {
 public:
  // A reader's hold on a version, whose bytes do not change while it lives. Movable; may be used on
  // any thread.
  class Snapshot {
   public:
    Snapshot(Snapshot&&) = default;
    Snapshot& operator=(Snapshot&& other) noexcept;
    ~Snapshot();

    uint64_t version() const { return version_; }
    // Returns region i of the receiver's manifest.
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

  // `buffers`: the buffers that can be shown. `released` is called, on any thread, when a snapshot
  // is released.
  ShownState(std::vector<RegionSpans> buffers, std::function<void()> released);

  // Takes a snapshot of the shown version. `holder` names the reader in the error of an update that
  // waits too long for the snapshot.
  //
  // kFailedPrecondition: nothing is shown yet, or the memory is paused. kUnavailable: it is being
  // written in place, or an update waits to write it.
  absl::StatusOr<Snapshot> Take(absl::string_view holder);

  // Makes `version`, which lies in `buffer`, the shown version.
  void Show(uint32_t buffer, uint64_t version);

  // Marks the memory as dirty unless a snapshot holds the buffer, and returns whether it did. The
  // check and the mark are atomic: no snapshot can be taken between them. If one holds it, Take()
  // fails until a later call succeeds, or until StopWaiting(): readers that overlap would otherwise
  // keep an update out for ever.
  bool BeginWriting(uint32_t buffer);
  // Lets snapshots be taken again: no update waits any more.
  void StopWaiting();
  // Marks the shown memory as dirty or clean. Take() fails while it is dirty. Show() cleans it.
  void SetDirty(bool dirty);

  // Makes Take() fail until Resume(). kFailedPrecondition: a snapshot is held; the error names its
  // holder.
  absl::Status Pause();
  void Resume();

  bool anything_shown() const;
  uint64_t version() const;  // 0 if nothing is shown.
  uint32_t buffer() const;
  bool dirty() const;

  // Describes the buffer's snapshots, as "snapshot of version 3 by eval"; empty if there are none.
  std::string DescribeHolders(uint32_t buffer) const;

 private:
  std::shared_ptr<Snapshot::Shared> shared_;
};

using Snapshot = ShownState::Snapshot;

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_SHOWN_STATE_H_
