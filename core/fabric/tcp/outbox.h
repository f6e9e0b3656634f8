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

  // So many of the peer's posts have landed. Goes before what has not been begun, and the newest
  // number is enough.
  void TellDone(uint64_t done) { done_ = done; }

  // What is next, in order: how many of `parts` were filled, with `most_bytes` in all at most.
  size_t Gather(absl::Span<iovec> parts, uint64_t most_bytes);
  // The first so many bytes of it are sent.
  void Consume(uint64_t size_bytes);

  // How many items (see below) it holds, and how to take back those behind so many.
  size_t size() const { return items_.size(); }
  void Truncate(size_t size);

  // Drops what has not been begun.
  void KeepWhatHasBegun();
  bool ReadsFrom(RegionId source) const;

 private:
  // Frames, and then the payloads of all of them; of what is not sent yet.
  struct Item {
    size_t frames = 0;
    size_t payloads = 0;
  };
  struct Payload {
    const std::byte* data = nullptr;
    uint64_t size_bytes = 0;
    RegionId source = RegionId::kNone;
  };

  // They take some of the tally, or of the first item, and return how much.
  uint64_t ConsumeTally(uint64_t most_bytes);
  uint64_t ConsumeItem(uint64_t most_bytes);
  // While none of it is sent, only Gather() renews it.
  bool HasTally() const { return tally_.size_bytes != told_; }

  Ring<Item> items_;
  Ring<Frame> frames_;        // Of all items.
  Ring<Payload> payloads_;    // Of all items.
  bool is_open_ = false;      // More frames come to the last item.
  bool has_begun_ = false;    // Some of the first item is sent,
  uint64_t begun_bytes_ = 0;  // and so much of its first frame.
  uint64_t done_ = 0;
  uint64_t told_ = 0;  // Sent.
  Frame tally_ = {.kind = FrameKind::kDone};
  uint64_t begun_tally_bytes_ = 0;
};

}  // namespace waybill::tcp

#endif  // WAYBILL_CORE_FABRIC_TCP_OUTBOX_H_
