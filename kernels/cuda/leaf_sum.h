// Where a digest comes together: ../README.md defines it.

#ifndef KERNELS_CUDA_LEAF_SUM_H_
#define KERNELS_CUDA_LEAF_SUM_H_

#include <cstdint>

namespace waybill::kernels::cuda {

// Where the values of leaves go, and which leaf of its stream a launch begins with. A launch takes
// whole leaves, or those that end the stream. `*sum` is aligned to 8 bytes and begins as 0; once
// the stream's launches are done, FinishDigest of kernels/digest.h makes the digest of it. A null
// `sum`: no digest is wanted.
struct LeafSum {
  uint64_t* sum = nullptr;
  uint64_t first_leaf = 0;
};

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_LEAF_SUM_H_
