// SPDX-License-Identifier: Apache-2.0

// Which NICs a GPU's memory is sent by.
#ifndef WAYBILL_CORE_HOST_NEAREST_NICS_H_
#define WAYBILL_CORE_HOST_NEAREST_NICS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/host/pci.h"

namespace waybill {

struct NearestNics {
  std::vector<std::string> names;  // In the order in which they were asked for.
  PciDistance distance = PciDistance::kSystem;
  // "nearest to the GPU at 0000:3b:00.0 (PIX: at most one switch between them)"; empty if the
  // kernel does not tell where they are, or if all are beyond the link between processors.
  std::string why;
};

// Of RDMA ports ("mlx5_0", "mlx5_1:2"), those that are as near to a GPU as any is. Where the kernel
// does not tell where they are, all are equally far. `root` stands before /sys.
NearestNics FindNearestNics(absl::string_view gpu_pci_address, absl::Span<const std::string> ports,
                            absl::string_view root = "");

}  // namespace waybill

#endif  // WAYBILL_CORE_HOST_NEAREST_NICS_H_
