// SPDX-License-Identifier: Apache-2.0

// Fills a rank's memory from a checkpoint.
#ifndef WAYBILL_CORE_LAYOUT_LOAD_SHARDS_H_
#define WAYBILL_CORE_LAYOUT_LOAD_SHARDS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/layout/checkpoint.h"
#include "core/tensor/manifest.h"

namespace waybill {

// Writes every shard of region 0, which lies at `weights`, with the checkpoint's elements; padding
// is left as it is. Works for trainers and workers: transposes, and casts.
//
// kInvalidArgument: the manifest is not of this checkpoint, or `weights` is not as large as region
// 0; names the tensor; what CheckOrder() refuses. The manifest has passed CheckManifest().
absl::Status LoadShards(const Checkpoint& checkpoint, const Manifest& manifest,
                        absl::Span<std::byte> weights);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_LOAD_SHARDS_H_
