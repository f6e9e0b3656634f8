// SPDX-License-Identifier: Apache-2.0

// How the elements of a matrix are stored in few bits, with a scale for each block.
//
// A tensor's last two dimensions are the matrix, those before them count matrices; the grid of
// blocks starts at each matrix's origin, and its last blocks may be cut short.
#ifndef WAYBILL_CORE_TENSOR_QUANTISATION_H_
#define WAYBILL_CORE_TENSOR_QUANTISATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/tensor/box.h"
#include "core/tensor/dtype.h"

namespace waybill {

// How the scale max(largest magnitude, epsilon) / largest number of the dtype is rounded. The
// numbers of this and of the next one are part of the encoding.
enum class ScaleRounding : uint8_t {
  kNone = 1,
  kPowerOfTwoUp = 2,   // The next power of two that is not smaller.
  kFloorExponent = 3,  // 2^(floor(log2(magnitude)) - exponent of the largest number), as MX has it.
};

// How an element x of a block of scale s becomes a number to be rounded. They differ in the last
// bit.
enum class Division : uint8_t {
  kTimesReciprocal = 1,            // x * (1 / s)
  kTimesLargestOverMagnitude = 2,  // x * (largest / magnitude)
  kDivide = 3,                     // x / s
};

// The default is what DeepSeek-V3's checkpoints have, worked out as vLLM and SGLang do.
struct Quantisation {
  Dtype dtype = Dtype::kF8E4m3;  // The type of the quantised elements.
  Dtype from = Dtype::kBf16;     // Elements are rounded to this first.
  Dtype scale_dtype = Dtype::kF32;
  ScaleRounding rounding = ScaleRounding::kNone;
  Division division = Division::kTimesReciprocal;
  bool stores_reciprocal = false;  // 1 / s is stored instead of s, by which q is w = q * s.
  float epsilon = 1e-4f;
  uint32_t block_rows = 128;  // 0: the whole matrix.
  uint32_t block_columns = 128;
  // There is one stored scale for each so many rows and columns: those of a block are repeated.
  // Divides the block; 0: the block's.
  uint32_t scale_rows = 0;
  uint32_t scale_columns = 0;

  bool operator==(const Quantisation&) const = default;
};

// "bf16" (no quantisation), "fp8-block", "fp8-row", "fp8-tensor", "mxfp8".
std::vector<absl::string_view> QuantisationNames();
// kInvalidArgument: none of those that quantise.
absl::StatusOr<Quantisation> NamedQuantisation(absl::string_view name);

// kInvalidArgument: fields that do not fit together, or that this release does not know.
absl::Status CheckQuantisation(const Quantisation& quantisation);

// Rows and columns of something, in elements of a matrix.
struct Extents2 {
  int64_t rows = 1;
  int64_t columns = 1;

  bool operator==(const Extents2&) const = default;
};

// The extents of a block, and of the elements that share one stored scale. The tensor must have at
// least two dimensions.
Extents2 BlockExtents(const Quantisation& quantisation, absl::Span<const int64_t> shape);
Extents2 ScaleExtents(const Quantisation& quantisation, absl::Span<const int64_t> shape);

// The shape of the tensor's grid, whose cells are `cell` large.
std::vector<int64_t> GridShape(absl::Span<const int64_t> shape, Extents2 cell);
// The cells that meet `box`, and those whose first element lies in it.
Box CellsMeeting(const Box& box, Extents2 cell);
Box CellsBeginningIn(const Box& box, Extents2 cell);
// The cells that lie in `box` whole, as far as the tensor goes.
Box CellsWithin(const Box& box, Extents2 cell, absl::Span<const int64_t> shape);
// The elements of the cells, cut short at the tensor's end.
Box ElementsOf(const Box& cells, Extents2 cell, absl::Span<const int64_t> shape);
// Between the grid of blocks and that of scales, which is finer or the same.
Box BlocksOfCells(const Box& cells, Extents2 block, Extents2 cell);
Box CellsOfBlocks(const Box& blocks, Extents2 block, Extents2 cell,
                  absl::Span<const int64_t> shape);

// "F8_E4M3 by 128x128 with F32 scales"
std::string ToString(const Quantisation& quantisation);

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_QUANTISATION_H_
