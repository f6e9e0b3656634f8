// SPDX-License-Identifier: Apache-2.0

// How a shard's elements are stored.
#ifndef WAYBILL_CORE_TENSOR_FORMAT_H_
#define WAYBILL_CORE_TENSOR_FORMAT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/tensor/dtype.h"
#include "core/tensor/quantisation.h"

namespace waybill {

// The part of a tensor that a shard holds. The numbers are part of the encoding.
enum class Content : uint8_t {
  kPlain = 0,      // Its elements.
  kQuantised = 1,  // Its elements, quantised.
  kScales = 2,     // The scales of its quantised elements. The shard's box counts scales.
};

struct Format {
  Dtype dtype = Dtype::kBf16;
  Content content = Content::kPlain;
  Quantisation quantisation = {};  // The default one for kPlain.

  static Format Quantised(const Quantisation& q) { return {q.dtype, Content::kQuantised, q}; }
  static Format Scales(const Quantisation& q) { return {q.scale_dtype, Content::kScales, q}; }

  bool operator==(const Format&) const = default;
};

inline uint32_t ElementBytes(const Format& format) { return SizeBytes(format.dtype); }

// Returns OK if a shard of format `destination` can be made from elements of `source`: the same
// format or bytes, F32 cast to or from F16 or BF16, BF16 cast to F16, or each of them quantised.
// kInvalidArgument else.
absl::Status CheckConversion(const Format& source, const Format& destination);

std::string ToString(const Format& format);

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_FORMAT_H_
