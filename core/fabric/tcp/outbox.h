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

  // `payload`: the frame's size_bytes, of `source`; stays until they are sent.
  void Push(const Frame& frame, const std::byte* payload = nullptr,
            RegionId source = RegionId::kNone) {
    items_.PushBack({frame, payload, source});
  }

  // So many of the peer's posts have landed. Goes before what has not been begun, and the newest
  // number is enough.
  void TellDone(uint64_t done) { done_ = done; }

  // What is next, in order: how many of `parts` were filled, with `most_bytes` in all at most.
  size_t Gather(absl::Span<iovec> parts, uint64_t most_bytes);
  // The first so many bytes of it are sent.
  void Consume(uint64_t size_bytes);

  // How many frames it holds, and how to take back those behind so many.
  size_t size() const { return items_.size(); }
  void Truncate(size_t size) { items_.Truncate(size); }

  // Drops what has not been begun.
  void KeepWhatHasBegun();
  bool ReadsFrom(RegionId source) const;

 private:
  struct Item {
    Frame frame;
    const std::byte* payload = nullptr;
    RegionId source = RegionId::kNone;

    uint64_t size_bytes() const {
      return sizeof(frame) + (payload == nullptr ? 0 : frame.size_bytes);
    }
  };

  // Puts the tally where it comes next, or renews the one that is there.
  void TellDone();

  Ring<Item> items_;
  uint64_t begun_bytes_ = 0;  // The bytes of the first item that were sent.
  uint64_t done_ = 0;
  uint64_t told_ = 0;  // Sent, or in `items_`.
};

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_OUTBOX_H_
