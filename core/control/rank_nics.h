// SPDX-License-Identifier: Apache-2.0

// Lists the NICs of a rank, for its manifest and whenever they may have changed.
#ifndef WAYBILL_CORE_CONTROL_RANK_NICS_H_
#define WAYBILL_CORE_CONTROL_RANK_NICS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "core/fabric/fabric.h"
#include "core/protocol/messages.pb.h"
#include "core/tensor/manifest.h"
#include "core/tensor/manifest_codec.h"

namespace waybill {

// Encodes a manifest with the fabric's NICs, and with this host's name if it has none.
EncodedManifest EncodeWithNics(Manifest manifest, const Fabric& fabric);

proto::Nics ListNics(const Fabric& fabric);

// Lists the fabric's NICs once a second.
class RankNics {
 public:
  explicit RankNics(const Fabric* fabric) : fabric_(*fabric) {}

  // Returns the NICs if a second has passed since the last time, otherwise nullopt.
  std::optional<proto::Nics> Look(absl::Time now) {
    if (now < due_) return std::nullopt;
    due_ = now + absl::Seconds(1);
    return ListNics(fabric_);
  }

 private:
  const Fabric& fabric_;
  absl::Time due_ = absl::InfinitePast();
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_RANK_NICS_H_
