// One matrix, in any parts at the trainers, quantised at the workers.
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
  Dtype dtype = Dtype::kBf16;              // Of the trainers.
  std::vector<std::vector<Box>> trainers;  // The parts of each; together all.
  uint32_t workers = 2;                    // Equal parts of the rows, or of the columns.
  bool by_columns = false;
  // Elements that are NaN or infinite, from this version on; 0: never.
  uint64_t nonfinite_from = 0;
};

// What workers are to show is worked out for the whole matrix, element by element, by the formats'
// definitions; of the number formats, by search through all codes.
std::shared_ptr<const ClusterModel> MakeQuantisedModel(const QuantisedModelOptions& options);

}  // namespace waybill

#endif  // WAYBILL_TESTING_CLUSTER_QUANTISED_MODEL_H_
