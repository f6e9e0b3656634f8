// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/tcp/outbox.h"

#include <algorithm>

namespace waybill::tcp {
namespace {

// Fills a list of parts up to its length and to a number of bytes. Memory that continues the last
// part extends this part.
class Parts {
 public:
  Parts(absl::Span<iovec> parts, uint64_t most_bytes) : parts_(parts), left_bytes_(most_bytes) {}

  // Returns false if not all of it could be added.
  bool Add(const void* data, uint64_t size_bytes) {
    const uint64_t size = std::min(size_bytes, left_bytes_);
    auto* begin = static_cast<std::byte*>(const_cast<void*>(data));
    if (count_ > 0 && EndOf(parts_[count_ - 1]) == begin) {
      parts_[count_ - 1].iov_len += size;
    } else if (count_ == parts_.size()) {
      return false;
    } else if (size > 0) {
      parts_[count_++] = {begin, size};
    }
    left_bytes_ -= size;
    return size == size_bytes;
  }

  size_t count() const { return count_; }

 private:
  static const std::byte* EndOf(const iovec& part) {
    return static_cast<const std::byte*>(part.iov_base) + part.iov_len;
  }

  const absl::Span<iovec> parts_;
  size_t count_ = 0;
  uint64_t left_bytes_;
};

}  // namespace

void Outbox::Push(const Frame& frame, const std::byte* payload, RegionId source) {
  if (!is_open_) items_.PushBack({});
  Item& item = items_[items_.size() - 1];
  frames_.PushBack(frame);
  ++item.frames;
  waiting_bytes_ += sizeof(Frame);
  if (payload != nullptr && frame.size_bytes > 0) {
    payloads_.PushBack({payload, frame.size_bytes, source});
    ++item.payloads;
    waiting_bytes_ += frame.size_bytes;
  }
  is_open_ = frame.kind == FrameKind::kWrite && !AreBytesBehind(frame, item.frames);
}

size_t Outbox::Gather(absl::Span<iovec> parts, uint64_t most_bytes) {
  if (begun_tally_bytes_ == 0) tally_.size_bytes = done_;
  Parts gathered(parts, most_bytes);
  size_t frame = 0, payload = 0;
  const auto add_tally = [&] {
    return !HasTally() || gathered.Add(reinterpret_cast<std::byte*>(&tally_) + begun_tally_bytes_,
                                       sizeof(tally_) - begun_tally_bytes_);
  };
  const auto add_item = [&](const Item& item, uint64_t begun_bytes) {
    for (size_t i = 0; i < item.frames; ++i, ++frame, begun_bytes = 0) {
      if (!gathered.Add(reinterpret_cast<std::byte*>(&frames_[frame]) + begun_bytes,
                        sizeof(Frame) - begun_bytes)) {
        return false;
      }
    }
    for (size_t i = 0; i < item.payloads; ++i, ++payload) {
      if (!gathered.Add(payloads_[payload].data, payloads_[payload].size_bytes)) return false;
    }
    return true;
  };
  size_t next = 0;
  bool goes_on = !has_begun_ || add_item(items_[next++], begun_bytes_);
  goes_on = goes_on && add_tally();
  while (goes_on && next < items_.size()) goes_on = add_item(items_[next++], 0);
  return gathered.count();
}

void Outbox::Consume(uint64_t size_bytes) {
  while (size_bytes > 0) {
    size_bytes -= HasTally() && !has_begun_ ? ConsumeTally(size_bytes) : ConsumeItem(size_bytes);
  }
}

uint64_t Outbox::ConsumeTally(uint64_t most_bytes) {
  const uint64_t size = std::min(most_bytes, sizeof(tally_) - begun_tally_bytes_);
  begun_tally_bytes_ += size;
  if (begun_tally_bytes_ == sizeof(tally_)) {
    told_ = tally_.size_bytes;
    begun_tally_bytes_ = 0;
  }
  return size;
}

uint64_t Outbox::ConsumeItem(uint64_t most_bytes) {
  Item& item = items_[0];
  has_begun_ = true;
  uint64_t size = 0;
  if (item.frames > 0) {
    size = std::min(most_bytes, sizeof(Frame) - begun_bytes_);
    begun_bytes_ += size;
    if (begun_bytes_ == sizeof(Frame)) {
      frames_.PopFront();
      --item.frames;
      begun_bytes_ = 0;
    }
  } else {
    Payload& payload = payloads_[0];
    size = std::min(most_bytes, payload.size_bytes);
    payload.data += size;
    payload.size_bytes -= size;
    if (payload.size_bytes == 0) {
      payloads_.PopFront();
      --item.payloads;
    }
  }
  waiting_bytes_ -= size;
  if (item.frames == 0 && item.payloads == 0) {
    items_.PopFront();
    has_begun_ = false;
  }
  return size;
}

void Outbox::Truncate(size_t size) {
  for (; items_.size() > size; items_.Truncate(items_.size() - 1)) {
    const Item& item = items_[items_.size() - 1];
    frames_.Truncate(frames_.size() - item.frames);
    waiting_bytes_ -= item.frames * sizeof(Frame);
    for (size_t i = 0; i < item.payloads; ++i) {
      waiting_bytes_ -= payloads_[payloads_.size() - 1].size_bytes;
      payloads_.Truncate(payloads_.size() - 1);
    }
    is_open_ = false;
  }
}

void Outbox::KeepWhatHasBegun() {
  Truncate(has_begun_ ? 1 : 0);
  done_ = begun_tally_bytes_ > 0 ? tally_.size_bytes : told_;
}

bool Outbox::ReadsFrom(RegionId source) const {
  for (size_t i = 0; i < payloads_.size(); ++i) {
    if (payloads_[i].source == source) return true;
  }
  return false;
}

}  // namespace waybill::tcp
