// Tests the simulation: each bug that is planted on purpose has to be found.

#include "core/protocol/mutation.h"

#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "testing/simulation/simulation.h"

namespace waybill::simulation {
namespace {

constexpr uint64_t kMostSeeds = 20000;

struct Planted {
  const char* name;
  Mutation mutation;
};

class MutationTest : public testing::TestWithParam<Planted> {
 protected:
  ~MutationTest() override { g_mutation = Mutation::kNone; }
};

TEST_P(MutationTest, IsFound) {
  g_mutation = GetParam().mutation;
  for (uint64_t seed = 1; seed <= kMostSeeds; ++seed) {
    const Result result = RunJob(seed, DrawFaults(seed), Story::kNotTold);
    if (result.violation.empty()) continue;
    std::cout << GetParam().name << ": found by seed " << seed << ": " << result.violation << "\n";
    RecordProperty("seeds", std::to_string(seed));
    return;
  }
  FAIL() << GetParam().name << " was not found by " << kMostSeeds << " seeds";
}

INSTANTIATE_TEST_SUITE_P(
    All, MutationTest,
    testing::Values(Planted{"RenewedAddressToldOnce", Mutation::kRenewedAddressToldOnce},
                    Planted{"CommitBeforeTheRecord", Mutation::kCommitBeforeTheRecord},
                    Planted{"GateIgnoresTheSequence", Mutation::kGateIgnoresTheSequence},
                    Planted{"ShowOnArrived", Mutation::kShowOnArrived},
                    Planted{"NoFence", Mutation::kNoFence},
                    Planted{"AbortWithoutQuiescence", Mutation::kAbortWithoutQuiescence},
                    Planted{"DoubtSettledTheWrongWay", Mutation::kDoubtSettledTheWrongWay},
                    Planted{"CommitDroppedWithTheStream", Mutation::kCommitDroppedWithTheStream},
                    Planted{"DoubtForgotten", Mutation::kDoubtForgotten},
                    Planted{"LedgerNotCompared", Mutation::kLedgerNotCompared},
                    Planted{"SentBeforeComplete", Mutation::kSentBeforeComplete},
                    Planted{"PublishLostInReconnect", Mutation::kPublishLostInReconnect},
                    Planted{"FenceTrustsTheController", Mutation::kFenceTrustsTheController},
                    Planted{"ReadersIgnored", Mutation::kReadersIgnored},
                    Planted{"DecisionsForgotten", Mutation::kDecisionsForgotten},
                    Planted{"StartBeforeReady", Mutation::kStartBeforeReady},
                    Planted{"OneArrivalDecides", Mutation::kOneArrivalDecides},
                    Planted{"AnythingIsLent", Mutation::kAnythingIsLent},
                    Planted{"LoanNotHeld", Mutation::kLoanNotHeld},
                    Planted{"RelayedUnseen", Mutation::kRelayedUnseen},
                    Planted{"SequenceBeginsAgain", Mutation::kSequenceBeginsAgain},
                    Planted{"BusyLanesKept", Mutation::kBusyLanesKept}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill::simulation
