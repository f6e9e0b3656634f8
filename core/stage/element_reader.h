// Reads a shard's elements where host code cannot.
#ifndef WAYBILL_CORE_STAGE_ELEMENT_READER_H_
#define WAYBILL_CORE_STAGE_ELEMENT_READER_H_

#include <cstddef>
#include <cstdint>

#include "core/plan/exchange.h"
#include "kernels/elements.h"

namespace waybill {

// Thread-safe. An implementation keeps its failures and reports them elsewhere.
class ElementReader {
 public:
  virtual ~ElementReader() = default;

  // Combines the shard's maximum of each of the table's blocks with that in `maxima`. Elements are
  // rounded to `via` first.
  virtual void CombineMaxima(const ScaleTable& table, const std::byte* source, kernels::Wide type,
                             kernels::Wide via, float* maxima) = 0;

  // Returns the number of NaNs and infinities in a rectangle.
  virtual uint64_t CountNonFinite(const std::byte* data, kernels::Wide type, int64_t pitch_bytes,
                                  size_t rows, size_t columns) = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_ELEMENT_READER_H_
