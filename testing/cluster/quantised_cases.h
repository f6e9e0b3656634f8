// SPDX-License-Identifier: Apache-2.0

// Jobs that quantise, with every way to cut a matrix.
#ifndef WAYBILL_TESTING_CLUSTER_QUANTISED_CASES_H_
#define WAYBILL_TESTING_CLUSTER_QUANTISED_CASES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor/box.h"
#include "core/tensor/quantisation.h"
#include "testing/cluster/cluster.h"
#include "testing/cluster/quantised_model.h"

namespace waybill {

// Returns the parts of trainers whose rows are cut at `cuts`.
inline std::vector<std::vector<Box>> Rows(const std::vector<int64_t>& cuts, int64_t columns) {
  std::vector<std::vector<Box>> parts;
  int64_t from = 0;
  for (const int64_t to : cuts) {
    parts.push_back({Box({from, 0}, {to, columns})});
    from = to;
  }
  return parts;
}

inline ClusterOptions OptionsFor(const QuantisedModelOptions& model) {
  ClusterOptions options;
  options.trainers = static_cast<uint32_t>(model.trainers.size());
  options.workers = model.workers;
  options.model = MakeQuantisedModel(model);
  return options;
}

struct QuantisedCase {
  std::string name;
  QuantisedModelOptions model;
};

inline QuantisedModelOptions With(Quantisation q, std::vector<std::vector<Box>> trainers,
                                  std::vector<int64_t> shape = {48, 40}) {
  return {.shape = std::move(shape), .quantisation = q, .trainers = std::move(trainers)};
}

inline constexpr Quantisation kBlocks = {.block_rows = 16, .block_columns = 16};
inline constexpr Quantisation kRow = {.epsilon = 1e-10f, .block_rows = 1, .block_columns = 0};
inline constexpr Quantisation kTensor = {.epsilon = 1e-10f, .block_rows = 0, .block_columns = 0};
inline constexpr Quantisation kMx = {.scale_dtype = Dtype::kE8m0,
                                     .rounding = ScaleRounding::kFloorExponent,
                                     .epsilon = 0,
                                     .block_rows = 1,
                                     .block_columns = 32};

inline std::vector<QuantisedCase> QuantisedCases() {
  std::vector<QuantisedCase> cases = {
      {"blocks_cut_at_their_edges", With(kBlocks, Rows({16, 48}, 40))},
      {"one_block_row_of_two_owners", With(kBlocks, Rows({21, 48}, 40))},
      {"three_owners", With(kBlocks, Rows({3, 9, 48}, 40))},
      {"every_row_an_owner", With(kBlocks, Rows({1, 2, 3, 4, 5, 6, 7, 48}, 40))},
      {"rows_whole", With(kRow, Rows({21, 48}, 40))},
      {"rows_cut_by_columns", With(kRow, {{Box({0, 0}, {48, 13})}, {Box({0, 13}, {48, 40})}})},
      {"the_whole_tensor", With(kTensor, Rows({5, 11, 20, 33, 48}, 40))},
      {"mx", With(kMx, Rows({21, 48}, 80), {48, 80})},
      {"mx_cut_within_a_block",
       With(kMx, {{Box({0, 0}, {48, 37})}, {Box({0, 37}, {48, 80})}}, {48, 80})},
      {"experts",
       With(kBlocks, {{Box({0, 0, 0}, {3, 21, 40})}, {Box({0, 21, 0}, {3, 48, 40})}}, {3, 48, 40})},
      {"two_shards_of_a_block_at_one_trainer",
       With(kBlocks, {{Box({0, 0}, {5, 40}), Box({20, 0}, {48, 40})}, {Box({5, 0}, {20, 40})}})},
      {"replicas", With(kBlocks, {{Box({0, 0}, {21, 40})},
                                  {Box({0, 0}, {21, 40})},
                                  {Box({21, 0}, {48, 40})},
                                  {Box({21, 0}, {48, 40})}})},
  };
  const Box whole({0, 0}, {4, 8});
  QuantisedModelOptions idle = With(kBlocks, {{whole}, {whole}}, {4, 8});
  idle.workers = 1;
  cases.push_back({"one_of_two_has_nothing_to_send", idle});
  QuantisedModelOptions columns = With(kBlocks, Rows({21, 48}, 40));
  columns.by_columns = true;
  cases.push_back({"a_worker_cut_within_a_block_has_its_scale_too", columns});
  QuantisedModelOptions fine = With(kBlocks, Rows({21, 48}, 40));
  fine.quantisation.scale_rows = fine.quantisation.scale_columns = 8;
  fine.by_columns = true;
  cases.push_back({"scales_finer_than_blocks", fine});
  QuantisedModelOptions f32 = With(kBlocks, Rows({21, 48}, 40));
  f32.dtype = Dtype::kF32;
  cases.push_back({"f32_is_rounded_to_bf16_first", f32});
  QuantisedModelOptions large = With({}, Rows({100, 333, 500}, 200), {500, 200});
  cases.push_back({"blocks_of_128", large});
  return cases;
}

}  // namespace waybill

#endif  // WAYBILL_TESTING_CLUSTER_QUANTISED_CASES_H_
