// SPDX-License-Identifier: Apache-2.0

// What is computed once for a block and used for many of its rows.

#ifndef KERNELS_PREPARED_BLOCK_H_
#define KERNELS_PREPARED_BLOCK_H_

#include <cstdint>

namespace waybill::kernels {

struct PreparedBlock {
  // The table by mantissas of bf16_table-inl.h, and two exponents that each fill a vector.
  alignas(64) uint8_t codes[128];
  uint8_t first_rare[64];
  uint8_t zero_below[64];
  // The same table for lookups of 16 bytes: for each 8 mantissas the code of the first one, and
  // twice the number of the last one with that code.
  uint8_t first_code[16];
  uint8_t last_of_first[16];
  float factor;
  bool has_table;
};

}  // namespace waybill::kernels

#endif  // KERNELS_PREPARED_BLOCK_H_
