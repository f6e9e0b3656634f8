// SPDX-License-Identifier: Apache-2.0

// A model of one matrix. Trainers hold any parts of it, and workers hold it quantised.
#ifndef WAYBILL_TESTING_CLUSTER_QUANTISED_MODEL_H_
#define WAYBILL_TESTING_CLUSTER_QUANTISED_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "core/tensor/box.h"
#include "core/tensor/dtype.h"
#include "core/tensor/quantisation.h"
#include "testing/cluster/cluster_model.h"

namespace waybill {

struct QuantisedModelOptions {
  std::vector<int64_t> shape = {48, 40};
  Quantisation quantisation = {.block_rows = 16, .block_columns = 16};
  Dtype dtype = Dtype::kBf16;              // The trainers' type.
  std::vector<std::vector<Box>> trainers;  // The parts of each trainer, which cover the matrix.
  // They hold equal parts of the rows, or of the columns; further ones hold the same again.
  uint32_t workers = 2;
  bool by_columns = false;
  // From this version on some elements are NaN or infinite. 0: never.
  uint64_t nonfinite_from = 0;
};

// Computes what workers must show for the whole matrix, element by element, from the definitions of
// the formats, and rounds by searching all codes.
std::shared_ptr<const ClusterModel> MakeQuantisedModel(const QuantisedModelOptions& options);

}  // namespace waybill

#endif  // WAYBILL_TESTING_CLUSTER_QUANTISED_MODEL_H_
