// Tests the simulation: each bug that is planted on purpose has to be found, by a seed that fails
// only because of it.

#include "core/protocol/mutation.h"

#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <vector>

#include "testing/simulation/simulation.h"

namespace waybill::simulation {
namespace {

constexpr uint64_t kMostSeeds = 20000;

struct Planted {
  const char* name;
  Mutation mutation;
  // The seed at which the search begins. For a bug that few seeds find, it is one that finds it. If
  // the simulation changes and the search takes long, write the seed that it prints here.
  uint64_t first_seed = 1;
};

class MutationTest : public testing::TestWithParam<Planted> {
 protected:
  ~MutationTest() override { g_mutation = Mutation::kNone; }
};

TEST_P(MutationTest, IsFound) {
  g_mutation = GetParam().mutation;
  const uint64_t first = GetParam().first_seed;
  for (uint64_t seed = first; seed < first + kMostSeeds; ++seed) {
    const std::vector<Fault> faults = DrawFaults(seed);
    const Result result = RunJob(seed, faults, Story::kNotTold);
    if (result.violation.empty()) continue;
    std::cout << GetParam().name << ": found by seed " << seed << ": " << result.violation << "\n";
    RecordProperty("seed", std::to_string(seed));
    g_mutation = Mutation::kNone;
    EXPECT_EQ(RunJob(seed, faults, Story::kNotTold).violation, "") << "without the bug";
    return;
  }
  FAIL() << GetParam().name << " was not found by " << kMostSeeds << " seeds from " << first;
}

INSTANTIATE_TEST_SUITE_P(
    All, MutationTest,
    testing::Values(
        Planted{"RenewedAddressToldOnce", Mutation::kRenewedAddressToldOnce, 165},
        Planted{"CommitBeforeTheRecord", Mutation::kCommitBeforeTheRecord},
        Planted{"GateIgnoresTheSequence", Mutation::kGateIgnoresTheSequence},
        Planted{"ShowOnArrived", Mutation::kShowOnArrived},
        Planted{"NoFence", Mutation::kNoFence, 9180},
        Planted{"AbortWithoutQuiescence", Mutation::kAbortWithoutQuiescence, 432},
        Planted{"DoubtSettledTheWrongWay", Mutation::kDoubtSettledTheWrongWay},
        Planted{"CommitDroppedWithTheStream", Mutation::kCommitDroppedWithTheStream, 931},
        Planted{"DoubtForgotten", Mutation::kDoubtForgotten},
        Planted{"LedgerNotCompared", Mutation::kLedgerNotCompared},
        Planted{"SentBeforeComplete", Mutation::kSentBeforeComplete},
        Planted{"PublishLostInReconnect", Mutation::kPublishLostInReconnect},
        Planted{"FenceTrustsTheController", Mutation::kFenceTrustsTheController},
        Planted{"ReadersIgnored", Mutation::kReadersIgnored},
        Planted{"DecisionsForgotten", Mutation::kDecisionsForgotten},
        Planted{"StartBeforeReady", Mutation::kStartBeforeReady},
        Planted{"OneArrivalDecides", Mutation::kOneArrivalDecides},
        Planted{"AnythingIsLent", Mutation::kAnythingIsLent, 260},
        Planted{"LoanNotHeld", Mutation::kLoanNotHeld},
        Planted{"RelayedUnseen", Mutation::kRelayedUnseen},
        Planted{"RoundMembersByRank", Mutation::kRoundMembersByRank, 1411},
        Planted{"RestOfWhatIsGivenUp", Mutation::kRestOfWhatIsGivenUp, 197},
        Planted{"RelaysMayGoOn", Mutation::kRelaysMayGoOn},
        Planted{"AwayGroupsForgotten", Mutation::kAwayGroupsForgotten},
        Planted{"AnyShownVersionIsBelieved", Mutation::kAnyShownVersionIsBelieved},
        Planted{"AnyCommittedVersionIsBelieved", Mutation::kAnyCommittedVersionIsBelieved},
        Planted{"OlderVersionsAreLent", Mutation::kOlderVersionsAreLent, 2028},
        Planted{"RestHasNotBegun", Mutation::kRestHasNotBegun, 22981},
        Planted{"HeldCommitDecides", Mutation::kHeldCommitDecides},
        Planted{"HoldForgottenWithTheRest", Mutation::kHoldForgottenWithTheRest, 2840},
        Planted{"AnyWordCommits", Mutation::kAnyWordCommits},
        Planted{"RefusedCommitIsShown", Mutation::kRefusedCommitIsShown},
        Planted{"AnswersToldAgain", Mutation::kAnswersToldAgain},
        Planted{"ReplicasNotCompared", Mutation::kReplicasNotCompared},
        Planted{"PartsNotCompared", Mutation::kPartsNotCompared, 2356},
        Planted{"SequenceBeginsAgain", Mutation::kSequenceBeginsAgain},
        Planted{"BusyLanesKept", Mutation::kBusyLanesKept, 870}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill::simulation
