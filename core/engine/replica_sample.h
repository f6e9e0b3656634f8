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

  // The manifest must outlive the sample. `regions` are of the kinds that Take() gets.
  //
  // kInvalidArgument: the regions are on several devices; kInternal: the device failed.
  static absl::StatusOr<std::unique_ptr<ReplicaSample>> Create(
      const Manifest* manifest, absl::Span<const MemorySpan> regions);

  // Returns the digests of the units that are sampled in `version`, sorted by key. `regions` is the
  // memory of each region of the manifest. Shards whose last dimension is not contiguous are left
  // out. kInternal: the device failed.
  absl::StatusOr<std::vector<Digest>> Take(uint64_t version, absl::Span<const MemorySpan> regions);

 private:
  explicit ReplicaSample(const Manifest* manifest) : manifest_(*manifest), units_(*manifest) {}

  const Manifest& manifest_;
  const ReplicaUnits units_;
  std::unique_ptr<DeviceStager> device_;  // Null if all regions are host memory.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_REPLICA_SAMPLE_H_
