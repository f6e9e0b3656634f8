// SPDX-License-Identifier: Apache-2.0

// Computes digests of a sample of a sender's shards, so that the controller can detect replicas
// that differ.
#ifndef WAYBILL_CORE_ENGINE_REPLICA_SAMPLE_H_
#define WAYBILL_CORE_ENGINE_REPLICA_SAMPLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/fabric/fabric.h"
#include "core/stage/device_stager.h"
#include "core/tensor/manifest.h"
#include "core/tensor/replica_units.h"

namespace waybill {

// Lives on the progress thread.
class ReplicaSample {
 public:
  struct Digest {
    uint64_t unit = 0;  // The unit's key.
    uint64_t digest = 0;
  };

  // The manifest, and the memory of its regions, must outlive the sample.
  //
  // kInvalidArgument: the regions are on several devices; kInternal: the device failed.
  static absl::StatusOr<std::unique_ptr<ReplicaSample>> Create(
      const Manifest* manifest, absl::Span<const MemorySpan> regions);

  // Returns the digests of the units that are sampled in `version`, sorted by key. Shards whose
  // last dimension is not contiguous are left out. kInternal: the device failed.
  absl::StatusOr<std::vector<Digest>> Take(uint64_t version);

 private:
  ReplicaSample(const Manifest* manifest, absl::Span<const MemorySpan> regions)
      : manifest_(*manifest), regions_(regions), units_(*manifest) {}

  const Manifest& manifest_;
  const absl::Span<const MemorySpan> regions_;
  const ReplicaUnits units_;
  std::unique_ptr<DeviceStager> device_;  // Null if all regions are host memory.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_REPLICA_SAMPLE_H_
