// What is worked out once for a block, where many rows of it follow.

#ifndef KERNELS_PREPARED_BLOCK_H_
#define KERNELS_PREPARED_BLOCK_H_

#include <cstdint>

namespace waybill::kernels {

struct PreparedBlock {
  // Of the BF16s of one binade, by their mantissas.
  alignas(64) uint8_t codes[128];
  float factor;
  // That binade's exponent, as BF16 has it; 0: there is no table.
  uint8_t reference;
};

}  // namespace waybill::kernels

#endif  // KERNELS_PREPARED_BLOCK_H_
