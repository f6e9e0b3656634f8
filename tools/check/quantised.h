// SPDX-License-Identifier: Apache-2.0

// Computes the expected quantised elements and scales of a whole tensor from the definitions of the
// number formats, without the product's kernels.
#ifndef WAYBILL_TOOLS_CHECK_QUANTISED_H_
#define WAYBILL_TOOLS_CHECK_QUANTISED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/check/change.h"
#include "tools/check/checkpoint_reader.h"

namespace waybill::check {

// E4M3 elements with a scale for each block of a matrix.
struct Quantising {
  int64_t block_rows = 128;  // 0: the whole matrix.
  int64_t block_columns = 128;
  int64_t cell_rows = 128;  // How many rows share a stored scale.
  int64_t cell_columns = 128;
  float epsilon = 1e-4f;
  bool mx = false;  // Scales are powers of two in one byte, as in OCP MX.
};

// One tensor in one version (see change.h).
class QuantisedTensor {
 public:
  QuantisedTensor(const StoredTensor& tensor, const WeightVersion& version,
                  const Quantising& quantising);

  // Writes the codes of `count` elements of one row, from element `first` of the tensor on.
  void Codes(int64_t first, int64_t count, uint8_t* codes) const;
  // Returns the stored bits of the scale of the element's block: a float's, or one byte.
  uint32_t ScaleBits(int64_t element) const;
  // Return the row and the column of the element's scale in the tensor's grid of stored scales.
  int64_t CellRow(int64_t element) const { return element / columns_ / quantising_.cell_rows; }
  int64_t CellColumn(int64_t element) const {
    return element % columns_ / quantising_.cell_columns;
  }

 private:
  // Calls visit(element, block) for each of `count` elements of a row.
  template <typename Visit>
  void ForEachOfRow(int64_t first, int64_t count, Visit visit) const;
  float ElementOf(int64_t element) const;
  int64_t BlockOf(int64_t element) const;

  const StoredTensor& tensor_;
  Quantising quantising_;
  ChangeKey change_;
  int64_t columns_;
  int64_t block_columns_;      // The number of blocks side by side.
  std::vector<float> scales_;  // One for each block.
};

// Returns the nearest E4M3 number, the even one if two are equally near, and at most the largest.
uint8_t NearestE4m3(float value);

}  // namespace waybill::check

#endif  // WAYBILL_TOOLS_CHECK_QUANTISED_H_
