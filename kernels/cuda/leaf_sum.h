// SPDX-License-Identifier: Apache-2.0

// The sum of leaves from which a digest is made; ../README.md defines the digest.

#ifndef KERNELS_CUDA_LEAF_SUM_H_
#define KERNELS_CUDA_LEAF_SUM_H_

#include <cstdint>

namespace waybill::kernels::cuda {

// The sum to which a launch adds the values of leaves, and the launch's first leaf in its stream. A
// launch handles whole leaves, or those that end the stream. `*sum` is aligned to 8 bytes and
// begins as 0. Once the launches of the stream are done, FinishDigest of kernels/digest.h makes the
// digest from it. If `sum` is null, no digest is computed.
struct LeafSum {
  uint64_t* sum = nullptr;
  uint64_t first_leaf = 0;
};

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_LEAF_SUM_H_
