// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/quantisation.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace waybill {
namespace {

TEST(Quantisation, EveryNameIsOfOneThatIsValid) {
  for (const absl::string_view name : QuantisationNames()) {
    const auto named = NamedQuantisation(name);
    if (name == "bf16") continue;  // Which does not quantise.
    ASSERT_TRUE(named.ok()) << named.status();
    EXPECT_EQ(CheckQuantisation(*named).message(), "");
  }
  EXPECT_EQ(NamedQuantisation("fp9").status().message(),
            "format \"fp9\" is not known; there are: bf16, fp8-block, fp8-row, fp8-tensor, mxfp8");
}

struct RefusedCase {
  const char* name;
  Quantisation quantisation;
  const char* message;
};

const RefusedCase kRefused[] = {
    {"elements_of_no_fp8", {.dtype = Dtype::kBf16}, "elements become F8_E4M3 or F8_E5M2, not BF16"},
    {"integers_rounded_to", {.from = Dtype::kI8}, "rounded to BF16, F16 or F32 first, not to I8"},
    {"scales_of_no_type_for_them", {.scale_dtype = Dtype::kBf16}, "scales are F32 or F8_E8M0"},
    {"powers_of_two_without_rounding", {.scale_dtype = Dtype::kE8m0}, "holds powers of two"},
    {"a_rounding_of_tomorrow", {.rounding = static_cast<ScaleRounding>(9)}, "rounding 9"},
    {"a_division_of_tomorrow", {.division = static_cast<Division>(9)}, "division 9"},
    {"a_division_that_bypasses_the_rounded_scale",
     {.rounding = ScaleRounding::kPowerOfTwoUp, .division = Division::kTimesLargestOverMagnitude},
     "divided by the unrounded scale"},
    {"an_epsilon_below_zero", {.epsilon = -1}, "epsilon -1 is not in [0, 1]"},
    {"scale_rows_that_do_not_divide",
     {.scale_rows = 96},
     "scales for 96 rows do not divide a "
     "block of 128"},
    {"scale_columns_of_a_whole_matrix",
     {.block_columns = 0, .scale_columns = 64},
     "scales for 64 columns do not divide a block of all"},
};

TEST(Quantisation, WhatDoesNotFitTogetherIsRefusedByName) {
  for (const RefusedCase& c : kRefused) {
    const absl::Status status = CheckQuantisation(c.quantisation);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_NE(std::string(status.message()).find(c.message), std::string::npos)
        << c.name << ": " << status;
  }
}

// Against the definition: a cell meets a box if any element is in both, and begins in it if its
// first element is.
TEST(Grid, CellsAreThoseThatAWalkOverAllElementsFinds) {
  const std::vector<int64_t> shape = {2, 11, 9};
  const Extents2 cell = {4, 3};
  EXPECT_EQ(GridShape(shape, cell), (std::vector<int64_t>{2, 3, 3}));
  for (int64_t r0 = 0; r0 < 11; ++r0) {
    for (int64_t r1 = r0 + 1; r1 <= 11; ++r1) {
      for (int64_t c0 = 0; c0 < 9; ++c0) {
        for (int64_t c1 = c0 + 1; c1 <= 9; ++c1) {
          const Box box({0, r0, c0}, {1, r1, c1});
          int64_t meeting = 0, beginning = 0;
          for (int64_t i = 0; i < 3; ++i) {
            for (int64_t j = 0; j < 3; ++j) {
              const Box one({0, i, j}, {1, i + 1, j + 1});
              const bool meets = !Intersect(ElementsOf(one, cell, shape), box).empty();
              const bool begins = i * 4 >= r0 && i * 4 < r1 && j * 3 >= c0 && j * 3 < c1;
              EXPECT_EQ(CellsMeeting(box, cell).Contains(one), meets);
              EXPECT_EQ(CellsBeginningIn(box, cell).Contains(one), begins);
              EXPECT_EQ(CellsWithin(box, cell, shape).Contains(one),
                        box.Contains(ElementsOf(one, cell, shape)));
              meeting += meets;
              beginning += begins;
            }
          }
          EXPECT_EQ(CellsMeeting(box, cell).element_count(), meeting);
          EXPECT_EQ(CellsBeginningIn(box, cell).element_count(), beginning);
        }
      }
    }
  }
}

TEST(Grid, ABlockOfNoExtentIsTheWholeMatrixAndScalesMayBeFiner) {
  const std::vector<int64_t> shape = {300, 200};
  EXPECT_EQ(BlockExtents({.block_rows = 1, .block_columns = 0}, shape), (Extents2{1, 200}));
  EXPECT_EQ(BlockExtents({.block_rows = 0, .block_columns = 0}, shape), (Extents2{300, 200}));
  EXPECT_EQ(ScaleExtents({}, shape), (Extents2{128, 128}));
  const Quantisation fine = {.scale_rows = 64, .scale_columns = 64};
  EXPECT_EQ(GridShape(shape, ScaleExtents(fine, shape)), (std::vector<int64_t>{5, 4}));
}

}  // namespace
}  // namespace waybill
