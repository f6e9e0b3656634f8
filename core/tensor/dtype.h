// SPDX-License-Identifier: Apache-2.0

// The types that elements have.
#ifndef WAYBILL_CORE_TENSOR_DTYPE_H_
#define WAYBILL_CORE_TENSOR_DTYPE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace waybill {

// The numbers are part of the encoding: they never change and are never used again.
enum class Dtype : uint8_t {
  kF32 = 1,
  kF16 = 2,
  kBf16 = 3,
  kF8E4m3 = 4,  // OCP E4M3 without infinities (torch.float8_e4m3fn).
  kF8E5m2 = 5,
  kE8m0 = 6,  // A power-of-two scale, as MXFP8 has it.
  kI8 = 7,
  kU8 = 8,
  kI16 = 9,
  kU16 = 10,
  kI32 = 11,
  kU32 = 12,
  kI64 = 13,
  kU64 = 14,
  kF64 = 15,
  kBool = 16,
};

// Bytes of one element; 0 for a value that is not a Dtype.
uint32_t SizeBytes(Dtype dtype);

// Returns true if elements of `source` are elements of `destination` as they are: of the same type,
// or bytes (U8) on one side and floats or scales of 8 bits, or booleans, on the other.
bool AreSameBytes(Dtype source, Dtype destination);

// Returns the name as safetensors spells it: "BF16", "F8_E4M3".
absl::string_view Name(Dtype dtype);

// kInvalidArgument: not a name of ours; the message lists those that are.
absl::StatusOr<Dtype> ParseDtype(absl::string_view name);

// kInvalidArgument: not a number of ours.
absl::StatusOr<Dtype> DtypeFromNumber(uint32_t number);

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_DTYPE_H_
