// SPDX-License-Identifier: Apache-2.0

// What a lane has to send: frames and the memory behind them, which is not copied.
#ifndef WAYBILL_CORE_FABRIC_TCP_OUTBOX_H_
#define WAYBILL_CORE_FABRIC_TCP_OUTBOX_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "core/fabric/fabric.h"
#include "core/fabric/ring.h"
#include "core/fabric/tcp/frames.h"

namespace waybill::tcp {

class Outbox {
 public:
  bool empty() const { return items_.empty() && done_ == told_; }

  // `payload`: the frame's size_bytes, of `source`; stays until they are sent. The frames of a post
  // are pushed one after another, and the last one ends it.
  void Push(const Frame& frame, const std::byte* payload = nullptr,
            RegionId source = RegionId::kNone);

  // Tells the peer how many of its posts have landed since the lane was made. The number goes
  // before all items that are not begun, and replaces an earlier number that is not begun.
  void TellDone(uint64_t done) { done_ = done; }

  // Fills `parts` with the next bytes to send, at most `most_bytes`. Returns how many it filled.
  size_t Gather(absl::Span<iovec> parts, uint64_t most_bytes);
  // The first so many bytes of it are sent.
  void Consume(uint64_t size_bytes);

  // Returns the number of items: single frames, or groups of write frames with their bytes.
  size_t size() const { return items_.size(); }
  // Returns how many bytes of frames and payloads have not been sent.
  uint64_t waiting_bytes() const { return waiting_bytes_; }
  // Keeps the first `size` items.
  void Truncate(size_t size);

  // Drops what has not been begun.
  void KeepWhatHasBegun();
  bool ReadsFrom(RegionId source) const;

 private:
  // The numbers of frames and of payloads that are still to be sent. The payloads follow the
  // frames.
  struct Item {
    size_t frames = 0;
    size_t payloads = 0;
  };
  struct Payload {
    const std::byte* data = nullptr;
    uint64_t size_bytes = 0;
    RegionId source = RegionId::kNone;
  };

  // Each removes at most `most_bytes` of the tally or of the first item, and returns how many.
  uint64_t ConsumeTally(uint64_t most_bytes);
  uint64_t ConsumeItem(uint64_t most_bytes);
  // Returns true if the tally is to be sent. Gather() updates the number until its first byte is
  // sent.
  bool HasTally() const { return tally_.size_bytes != told_; }

  Ring<Item> items_;
  Ring<Frame> frames_;        // The frames of all items, in order.
  Ring<Payload> payloads_;    // The payloads of all items, in order.
  bool is_open_ = false;      // The last item gets more frames.
  bool has_begun_ = false;    // Some bytes of the first item are sent.
  uint64_t begun_bytes_ = 0;  // The bytes of the first frame that are sent.
  uint64_t waiting_bytes_ = 0;
  uint64_t done_ = 0;
  uint64_t told_ = 0;  // The number that the peer was sent last.
  Frame tally_ = {.kind = FrameKind::kDone};
  uint64_t begun_tally_bytes_ = 0;
};

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_OUTBOX_H_
