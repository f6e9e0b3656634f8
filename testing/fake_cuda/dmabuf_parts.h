// SPDX-License-Identifier: Apache-2.0

// What is in a dma-buf of several allocations, as simulated GPUs make it and simulated NICs map it.
#ifndef WAYBILL_TESTING_FAKE_CUDA_DMABUF_PARTS_H_
#define WAYBILL_TESTING_FAKE_CUDA_DMABUF_PARTS_H_

#include <cstdint>

namespace waybill {

// The name of the file. It is a list of DmabufPart, and has to be mapped before anything is
// unmapped of the allocations.
inline constexpr char kDmabufPartsName[] = "fake dma-buf of parts";

struct DmabufPart {
  int fd = -1;  // Of this process.
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_FAKE_CUDA_DMABUF_PARTS_H_
