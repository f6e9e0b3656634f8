// What a tensor's quantised elements and their scales are to be, from the definitions of the number
// formats: worked out for the whole tensor, with none of the product's kernels.
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
  int64_t cell_rows = 128;  // One stored scale for each so many.
  int64_t cell_columns = 128;
  float epsilon = 1e-4f;
  bool mx = false;  // Scales are powers of two, as MX has them, in one byte.
};

// One tensor in one version (see change.h).
class QuantisedTensor {
 public:
  QuantisedTensor(const StoredTensor& tensor, uint64_t version, const Quantising& quantising);

  // The codes of `count` elements of one row, from element number `first` of the tensor on.
  void Codes(int64_t first, int64_t count, uint8_t* codes) const;
  // The stored bits of the scale of that element's block: of a float, or of one byte.
  uint32_t ScaleBits(int64_t element) const;
  // In which row and column of stored scales of the tensor it is.
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
  int64_t block_columns_;      // How many blocks are side by side.
  std::vector<float> scales_;  // Of each block.
};

// The nearest E4M3 number, of two as near the even one; beyond the largest that.
uint8_t NearestE4m3(float value);

}  // namespace waybill::check

#endif  // WAYBILL_TOOLS_CHECK_QUANTISED_H_
