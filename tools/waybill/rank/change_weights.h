// SPDX-License-Identifier: Apache-2.0

// Changes a trainer's weights as tools/check/change.h defines the versions.
#ifndef WAYBILL_TOOLS_WAYBILL_RANK_CHANGE_WEIGHTS_H_
#define WAYBILL_TOOLS_WAYBILL_RANK_CHANGE_WEIGHTS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "core/tensor/manifest.h"
#include "tools/check/change.h"

namespace waybill {

// Changes `weights`, which is region 0 of the manifest, from version `from` to version `to`.
void ChangeWeights(const Manifest& manifest, absl::Span<std::byte> weights,
                   const check::WeightVersion& from, const check::WeightVersion& to);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_RANK_CHANGE_WEIGHTS_H_
