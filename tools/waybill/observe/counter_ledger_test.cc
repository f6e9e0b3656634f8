// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/observe/counter_ledger.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace waybill {
namespace {

constexpr absl::Time kBegin = absl::UnixEpoch();

struct LedgerCase {
  std::string name;
  struct Step {
    std::string source;
    uint64_t value;
    uint64_t sum;  // After the step.
    absl::Duration pause = absl::Seconds(1);
  };
  std::vector<Step> steps;
};

const LedgerCase kLedgerCases[] = {
    // name, steps {source, value, sum}
    {"a_source_counts_on", {{"a", 5, 5}, {"a", 5, 5}, {"a", 9, 9}}},
    {"sources_add_up", {{"a", 5, 5}, {"b", 7, 12}, {"a", 6, 13}}},
    {"a_source_that_begins_anew_counts_in_full", {{"a", 5, 5}, {"a", 2, 7}, {"a", 3, 8}}},
    {"a_source_that_left_stays_in_the_sum", {{"a", 5, 5}, {"b", 1, 6}, {"b", 2, 7}}},
    {"a_source_that_was_away_goes_on", {{"a", 5, 5}, {"a", 6, 6, absl::Minutes(59)}}},
    {"a_source_that_was_forgotten_counts_in_full", {{"a", 5, 5}, {"a", 6, 11, absl::Minutes(61)}}},
};

class CounterLedgerTest : public testing::TestWithParam<LedgerCase> {};

TEST_P(CounterLedgerTest, AddsUp) {
  CounterLedger ledger;
  absl::Time now = kBegin;
  uint64_t last = 0;
  for (const LedgerCase::Step& step : GetParam().steps) {
    now += step.pause;
    ledger.ForgetOldSources(now);
    ledger.Record("bytes", step.source, step.value, now);
    EXPECT_EQ(ledger.Sum("bytes"), step.sum);
    EXPECT_GE(ledger.Sum("bytes"), last);
    last = ledger.Sum("bytes");
  }
  EXPECT_EQ(ledger.Sum("another"), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, CounterLedgerTest, testing::ValuesIn(kLedgerCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace waybill
