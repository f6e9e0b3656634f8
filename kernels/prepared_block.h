// What is worked out once for a block, where many rows of it follow.

#ifndef KERNELS_PREPARED_BLOCK_H_
#define KERNELS_PREPARED_BLOCK_H_

#include <cstdint>

namespace waybill::kernels {

struct PreparedBlock {
  // A table by mantissas, as bf16_table-inl.h has it, and two exponents, each filling a vector.
  alignas(64) uint8_t codes[128];
  uint8_t first_rare[64];
  uint8_t zero_below[64];
  // The same table for lookups of 16 bytes: of each 8 mantissas the code of the first, and twice
  // the number of the last that has it.
  uint8_t first_code[16];
  uint8_t last_of_first[16];
  float factor;
  bool has_table;
};

}  // namespace waybill::kernels

#endif  // KERNELS_PREPARED_BLOCK_H_
