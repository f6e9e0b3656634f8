#include "core/fabric/tcp/outbox.h"

#include <algorithm>
#include <utility>

namespace waybill::tcp {

void Outbox::TellDone() {
  told_ = done_;
  const size_t place = begun_bytes_ > 0 ? 1 : 0;
  if (items_.size() > place && items_[place].frame.kind == FrameKind::kDone) {
    items_[place].frame.size_bytes = done_;
    return;
  }
  items_.PushFront({{.kind = FrameKind::kDone, .size_bytes = done_}});
  if (place == 1) std::swap(items_[0], items_[1]);
}

size_t Outbox::Gather(absl::Span<iovec> parts, uint64_t most_bytes) {
  if (done_ != told_) TellDone();
  size_t count = 0;
  uint64_t skipped_bytes = begun_bytes_;
  for (size_t i = 0; i < items_.size() && count < parts.size() && most_bytes > 0; ++i) {
    Item& item = items_[i];
    if (skipped_bytes < sizeof(Frame)) {
      const uint64_t size = std::min(sizeof(Frame) - skipped_bytes, most_bytes);
      parts[count++] = {reinterpret_cast<std::byte*>(&item.frame) + skipped_bytes, size};
      most_bytes -= size;
      skipped_bytes = sizeof(Frame);
    }
    const uint64_t left = item.size_bytes() - skipped_bytes;
    if (left > 0 && count < parts.size() && most_bytes > 0) {
      const uint64_t size = std::min(left, most_bytes);
      parts[count++] = {const_cast<std::byte*>(item.payload) + (skipped_bytes - sizeof(Frame)),
                        size};
      most_bytes -= size;
    }
    skipped_bytes = 0;
  }
  return count;
}

void Outbox::Consume(uint64_t size_bytes) {
  begun_bytes_ += size_bytes;
  while (!items_.empty() && begun_bytes_ >= items_[0].size_bytes()) {
    begun_bytes_ -= items_[0].size_bytes();
    items_.PopFront();
  }
}

void Outbox::KeepWhatHasBegun() {
  items_.Truncate(begun_bytes_ > 0 ? 1 : 0);
  done_ = told_;
}

bool Outbox::ReadsFrom(RegionId source) const {
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].source == source) return true;
  }
  return false;
}

}  // namespace waybill::tcp
