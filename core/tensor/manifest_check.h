// SPDX-License-Identifier: Apache-2.0

// Whether a manifest can be believed: it came from a user or over the network.
#ifndef WAYBILL_CORE_TENSOR_MANIFEST_CHECK_H_
#define WAYBILL_CORE_TENSOR_MANIFEST_CHECK_H_

#include "absl/status/status.h"
#include "core/tensor/manifest.h"

namespace waybill {

enum class Holes {
  kAllowed,  // A trainer's region may hold what is not weights.
  kRefused,  // A worker's regions are filled by shards and declared padding, to the last byte.
};

// Checks that names are unique and not empty, boxes lie in their tensors, places lie in their
// regions, indices exist, sizes do not overflow; and, where holes are refused, that the regions'
// bytes are covered, and none of them twice.
//
// kInvalidArgument: names the tensor or region, what was found and what is allowed.
absl::Status CheckManifest(const Manifest& manifest, Holes holes);

// Whether all elements lie where their strides say, as whoever reads or writes them needs it.
//
// kInvalidArgument: names the tensor and the engine's own order in which it lies, and says what to
// receive instead.
absl::Status CheckOrder(const Manifest& manifest);

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_MANIFEST_CHECK_H_
