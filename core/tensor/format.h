// How a shard's elements are stored.
#ifndef WAYBILL_CORE_TENSOR_FORMAT_H_
#define WAYBILL_CORE_TENSOR_FORMAT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/tensor/dtype.h"

namespace waybill {

// Plain elements of one dtype.
struct Format {
  Dtype dtype = Dtype::kBf16;

  bool operator==(const Format&) const = default;
};

inline uint32_t ElementBytes(const Format& format) { return SizeBytes(format.dtype); }

// OK where elements of `source` can be written as `destination`: the same format, or F32 rounded to
// BF16. kInvalidArgument else.
absl::Status CheckConversion(const Format& source, const Format& destination);

std::string ToString(const Format& format);

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_FORMAT_H_
