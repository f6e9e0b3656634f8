// SPDX-License-Identifier: Apache-2.0

// A model of a cluster: what its ranks hold, and the bytes of each version.
#ifndef WAYBILL_TESTING_CLUSTER_CLUSTER_MODEL_H_
#define WAYBILL_TESTING_CLUSTER_CLUSTER_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/tensor/dtype.h"
#include "core/tensor/manifest.h"

namespace waybill {

// The bytes of version v are a pure function of v.
class ClusterModel {
 public:
  virtual ~ClusterModel() = default;

  virtual Manifest Trainer(uint32_t t) const = 0;  // Has one region.
  virtual Manifest Worker(uint32_t w) const = 0;

  // Fill a trainer's memory, and a worker's zeroed regions, with the bytes of a version.
  virtual void Fill(uint64_t version, const Manifest& trainer, std::byte* memory) const = 0;
  virtual void Expect(uint64_t version, const Manifest& worker,
                      std::vector<std::vector<std::byte>>& regions) const = 0;
};

struct PlainModelOptions {
  uint32_t trainers = 2;
  uint32_t workers = 2;
  Dtype dtype = Dtype::kBf16;  // The trainers' type. Workers have BF16.
};

// Returns a model of a few tensors. Trainers share their rows; workers have columns, fused rows and
// a transposed part.
std::shared_ptr<const ClusterModel> MakePlainModel(const PlainModelOptions& options);

}  // namespace waybill

#endif  // WAYBILL_TESTING_CLUSTER_CLUSTER_MODEL_H_
