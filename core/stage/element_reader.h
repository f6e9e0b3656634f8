// SPDX-License-Identifier: Apache-2.0

// Reads a shard's elements where host code cannot.
#ifndef WAYBILL_CORE_STAGE_ELEMENT_READER_H_
#define WAYBILL_CORE_STAGE_ELEMENT_READER_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "core/plan/exchange.h"
#include "kernels/elements.h"

namespace waybill {

// Thread-safe. An implementation keeps its failures and reports them elsewhere.
class ElementReader {
 public:
  virtual ~ElementReader() = default;

  // A shard whose maxima are wanted.
  struct Shard {
    const ScaleTable* table = nullptr;
    const std::byte* source = nullptr;  // Its first element.
    kernels::Wide type = {};
    kernels::Wide via = {};   // What elements are rounded to first.
    float* maxima = nullptr;  // One for each of the table's blocks.
  };
  // Combines each shard's maximum of each block with that in `maxima`.
  virtual void CombineMaxima(absl::Span<const Shard> shards) = 0;

  // Returns the number of NaNs and infinities in a rectangle.
  virtual uint64_t CountNonFinite(const std::byte* data, kernels::Wide type, int64_t pitch_bytes,
                                  size_t rows, size_t columns) = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_ELEMENT_READER_H_
