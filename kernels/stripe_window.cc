// SPDX-License-Identifier: Apache-2.0

#include "kernels/stripe_window.h"

#include <algorithm>

namespace waybill::kernels {

bool StripeWindow::Fits(const DigestStream& stream, size_t row_bytes, size_t size_bytes) {
  return stream.position_ % kStripeBytes == 0 && row_bytes % kStripeBytes == 0 &&
         size_bytes <= kMostBytes;
}

StripeWindow::StripeWindow(DigestStream* stream, size_t size_bytes)
    : stream_(stream), begin_(stream->position_), size_bytes_(size_bytes) {
  // The whole leaves, and the one that is open at the end, be it empty.
  const size_t leaves = (begin_ + size_bytes) / kLeafBytes + 1;
  std::copy(std::begin(stream->lanes_), std::end(stream->lanes_), lanes_);
  std::fill(lanes_ + scalar::kLaneCount, lanes_ + leaves * scalar::kLaneCount, 0);
}

StripeWindow::~StripeWindow() {
  const uint64_t* lanes = lanes_;
  size_t left = begin_ + size_bytes_;
  for (; left >= kLeafBytes; left -= kLeafBytes, lanes += scalar::kLaneCount) {
    stream_->sum_ += scalar::LeafValue(lanes, stream_->leaf_++);
  }
  stream_->position_ = left;
  std::copy(lanes, lanes + scalar::kLaneCount, stream_->lanes_);
}

}  // namespace waybill::kernels
