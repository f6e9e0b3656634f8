// SPDX-License-Identifier: Apache-2.0

#include "core/layout/sharding.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

namespace waybill {
namespace {

TEST(TrainerSharding, ReadsWhatItPrints) {
  for (const char* text :
       {"whole", "fsdp=2", "fsdp=2,tp=4,pp=3,replicas=5", "replicas=65536", "fsdp=32,replicas=8",
        "fsdp=256,ep=128", "fsdp=256,ep=256,experts=uneven", "fsdp1,fsdp=64,replicas=2",
        "fsdp1,fsdp=64,params=original", "megatron,tp=16,pp=2,dp=8,ep=8",
        "megatron,tp=4,dp=4,ep=8,etp=1,qkv=fused", "megatron,tp=2,pp=3,dp=1,stages=21+20+20",
        "megatron,pp=2,dp=1,vpp=4", "megatron,pp=2,dp=1,vpp=3,stages=6+9"}) {
    const auto sharding = TrainerSharding::Parse(text);
    ASSERT_TRUE(sharding.ok()) << sharding.status();
    EXPECT_EQ(ToString(*sharding), text);
  }
  EXPECT_EQ(TrainerSharding::Parse("")->world(), 1u);
  EXPECT_EQ(TrainerSharding::Parse("tp=4,fsdp=2")->world(), 8u);
  EXPECT_EQ(TrainerSharding::Parse("3")->fsdp, 3u);
  EXPECT_EQ(TrainerSharding::Parse("fsdp2,fsdp=3")->fsdp, 3u);
  EXPECT_EQ(WorkerSharding::Parse("3")->tp, 3u);
}

TEST(TrainerSharding, MegatronHasAsManyReplicasAsItsExpertsNeed) {
  const auto sharding = TrainerSharding::Parse("megatron,tp=16,pp=2,ep=8");
  ASSERT_TRUE(sharding.ok()) << sharding.status();
  EXPECT_EQ(sharding->etp, 16u);
  EXPECT_EQ(sharding->replicas, 8u);
  EXPECT_EQ(sharding->world(), 256u);
  EXPECT_EQ(TrainerSharding::Parse("megatron,tp=4,ep=8,etp=1")->replicas, 2u);
  EXPECT_EQ(TrainerSharding::Parse("megatron,stages=3+2+2")->pp, 3u);
}

TEST(TrainerSharding, FsdpNumbersRanksWithTpFastestAndPpSlowest) {
  const TrainerSharding s{.fsdp = 3, .tp = 2, .pp = 2, .replicas = 4};
  uint32_t rank = 0;
  for (uint32_t pp = 0; pp < s.pp; ++pp) {
    for (uint32_t replica = 0; replica < s.replicas; ++replica) {
      for (uint32_t fsdp = 0; fsdp < s.fsdp; ++fsdp) {
        for (uint32_t tp = 0; tp < s.tp; ++tp, ++rank) {
          EXPECT_EQ(s.pp_rank(rank), pp);
          EXPECT_EQ(s.replica(rank), replica);
          EXPECT_EQ(s.fsdp_rank(rank), fsdp);
          EXPECT_EQ(s.tp_rank(rank), tp);
        }
      }
    }
  }
  EXPECT_EQ(rank, s.world());
}

// Megatron-Core's two grids over one stage: (dp, tp) for what is no expert, and (edp, ep, etp).
TEST(TrainerSharding, MegatronNumbersExpertsInAGridOfTheirOwn) {
  const auto s = TrainerSharding::Parse("megatron,tp=4,pp=2,dp=6,ep=3,etp=2");
  ASSERT_TRUE(s.ok()) << s.status();
  uint32_t rank = 0;
  for (uint32_t pp = 0; pp < 2; ++pp) {
    for (uint32_t edp = 0; edp < 4; ++edp) {
      for (uint32_t ep = 0; ep < 3; ++ep) {
        for (uint32_t etp = 0; etp < 2; ++etp, ++rank) {
          EXPECT_EQ(s->pp_rank(rank), pp);
          EXPECT_EQ(s->ExpertShare(rank).index, ep);
          EXPECT_EQ(s->TensorShare(rank, /*of_expert=*/true).index, etp);
          EXPECT_EQ(s->TensorShare(rank, /*of_expert=*/false).index, rank % 4);
        }
      }
    }
  }
  EXPECT_EQ(rank, s->world());
}

// Everything that decides what a rank holds.
using Held = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>;
Held HeldBy(const TrainerSharding& s, uint32_t rank, bool experts) {
  return {s.pp_rank(rank),
          s.TensorShare(rank, false).index,
          s.RowShare(rank, false).index,
          experts ? s.TensorShare(rank, true).index : 0,
          experts ? s.RowShare(rank, true).index : 0,
          experts ? s.ExpertShare(rank).index : 0};
}

TEST(TrainerSharding, RanksThatHoldTheSameAreAlikeAndNoOthers) {
  for (const char* text : {"fsdp=4,replicas=3", "fsdp=6,ep=3,replicas=2,tp=2,pp=2",
                           "megatron,tp=4,pp=2,dp=6,ep=3,etp=2", "megatron,tp=2,dp=6,ep=3,etp=1",
                           "megatron,tp=2,dp=4", "fsdp1,fsdp=3,replicas=2"}) {
    const auto s = TrainerSharding::Parse(text);
    ASSERT_TRUE(s.ok()) << s.status();
    for (const bool experts : {false, true}) {
      std::map<Held, uint32_t> first;
      for (uint32_t rank = 0; rank < s->world(); ++rank) {
        const uint32_t expected = first.try_emplace(HeldBy(*s, rank, experts), rank).first->second;
        EXPECT_EQ(s->FirstLike(rank, experts), expected) << text << " rank " << rank;
      }
    }
  }
}

TEST(WorkerSharding, ReadsWhatItPrints) {
  for (const char* text :
       {"tp=2,dp=3", "tp=8,ep=8,engine=sglang", "dp=128,ep=128", "tp=4,dp=8,ep=32,replicas=4",
        "tp=16,ep=4,engine=sglang", "tp=8,mxfp4=trtllm"}) {
    const auto sharding = WorkerSharding::Parse(text);
    ASSERT_TRUE(sharding.ok()) << sharding.status();
    EXPECT_EQ(ToString(*sharding), text);
  }
  EXPECT_EQ(WorkerSharding::Parse("tp=2,dp=3")->world(), 6u);
  EXPECT_EQ(WorkerSharding::Parse("tp=2,dp=3,replicas=2")->world(), 12u);
}

const TensorRule& Rule(absl::string_view name, Block block) {
  for (const TensorRule& rule : TensorRules()) {
    if (rule.name == name && rule.block == block) return rule;
  }
  ADD_FAILURE() << name;
  return TensorRules()[0];
}

struct ShareCase {
  const char* name;
  const char* sharding;
  uint32_t rank;
  // {count, index} of attention, dense MLP, shared experts, experts' matrices, experts.
  uint32_t shares[5][2];
};

class WorkerShareTest : public testing::TestWithParam<ShareCase> {};

TEST_P(WorkerShareTest, EachKindOfTensorHasItsOwnShare) {
  const ShareCase& c = GetParam();
  const auto s = WorkerSharding::Parse(c.sharding);
  ASSERT_TRUE(s.ok()) << s.status();
  const Family& family = *FamilyOfArchitecture("DeepseekV3ForCausalLM");
  const Share found[] = {
      s->TensorShare(Rule("self_attn.q_b_proj.weight", Block::kMlaLatentQuery), family, c.rank),
      s->TensorShare(Rule("mlp.up_proj.weight", Block::kDenseMlp), family, c.rank),
      s->TensorShare(Rule("mlp.shared_experts.up_proj.weight", Block::kSharedExperts), family,
                     c.rank),
      s->TensorShare(Rule("up_proj.weight", Block::kExperts), family, c.rank),
      s->ExpertShare(c.rank)};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(found[i].count, c.shares[i][0]) << i;
    EXPECT_EQ(found[i].index, c.shares[i][1]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, WorkerShareTest,
    testing::Values(
        ShareCase{"tp", "tp=4", 3, {{4, 3}, {4, 3}, {4, 3}, {4, 3}, {1, 0}}},
        ShareCase{"ep", "tp=4,ep=4", 3, {{4, 3}, {4, 3}, {4, 3}, {1, 0}, {4, 3}}},
        ShareCase{"dp_cuts_experts_too", "tp=2,dp=2", 3, {{2, 1}, {2, 1}, {2, 1}, {4, 3}, {1, 0}}},
        ShareCase{"dp_attention", "dp=4,ep=4", 2, {{1, 0}, {1, 0}, {1, 0}, {1, 0}, {4, 2}}},
        ShareCase{"vllm_divides_tokens_of_shared_experts",
                  "tp=2,dp=2,ep=4",
                  3,
                  {{2, 1}, {2, 1}, {1, 0}, {1, 0}, {4, 3}}},
        ShareCase{
            "a_second_engine", "tp=4,ep=4,replicas=2", 5, {{4, 1}, {4, 1}, {4, 1}, {1, 0}, {4, 1}}},
        ShareCase{"sglang_cuts_what_is_no_attention_over_all",
                  "tp=2,dp=4,ep=2,engine=sglang",
                  5,
                  {{2, 1}, {8, 5}, {8, 5}, {4, 1}, {2, 1}}}),
    [](const auto& info) { return std::string(info.param.name); });

struct BadCase {
  const char* name;
  const char* text;
  const char* message;
};

class ShardingRefusesTest : public testing::TestWithParam<BadCase> {};

TEST_P(ShardingRefusesTest, AndSaysWhat) {
  const auto sharding = TrainerSharding::Parse(GetParam().text);
  EXPECT_EQ(sharding.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sharding.status().message(), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ShardingRefusesTest,
    testing::Values(
        BadCase{"another_word", "dp=2",
                "sharding \"dp=2\": \"dp\" is not one of fsdp, tp, pp, replicas, ep, stages, "
                "experts"},
        BadCase{"another_framework", "deepspeed,tp=2",
                "sharding \"deepspeed,tp=2\": \"deepspeed\" is not one of fsdp, tp, pp, replicas, "
                "ep, stages, experts"},
        BadCase{"a_word_of_another_framework", "fsdp1,tp=2",
                "sharding \"fsdp1,tp=2\": \"tp\" is not one of fsdp, replicas, params"},
        BadCase{"a_word_twice", "tp=2,tp=2", "sharding \"tp=2,tp=2\": tp is said twice"},
        BadCase{"no_number", "tp",
                "sharding \"tp\": tp is \"\", allowed are whole numbers from 1 to 65536"},
        BadCase{"zero", "tp=0",
                "sharding \"tp=0\": tp is \"0\", allowed are whole numbers from 1 to 65536"},
        BadCase{"negative", "tp=-1",
                "sharding \"tp=-1\": tp is \"-1\", allowed are whole numbers from 1 to 65536"},
        BadCase{"too_many", "tp=65537",
                "sharding \"tp=65537\": tp is \"65537\", allowed are whole numbers from 1 to "
                "65536"},
        BadCase{"too_large_a_world", "tp=65536,fsdp=65536",
                "sharding \"tp=65536,fsdp=65536\": more than the 65536 ranks that are allowed"},
        BadCase{"too_large_a_derived_world", "megatron,tp=2,pp=2,ep=65536",
                "sharding \"megatron,tp=2,pp=2,ep=65536\": more than the 65536 ranks that are "
                "allowed"},
        BadCase{"a_comma_at_the_end", "tp=2,",
                "sharding \"tp=2,\": \"\" is not one of fsdp, tp, pp, replicas, ep, stages, "
                "experts"},
        BadCase{"experts_over_ranks_that_are_not_there", "fsdp=8,ep=3",
                "sharding \"fsdp=8,ep=3\": ep=3 does not divide fsdp=8; ep may be 1, 2, 4 or 8"},
        BadCase{"experts_over_too_few_megatron_ranks", "megatron,tp=4,dp=2,ep=3",
                "sharding \"megatron,tp=4,dp=2,ep=3\": ep=3 times etp=4 does not divide the tp=4 "
                "times dp=2 ranks of a stage; their product may be 1, 2, 4 or 8"},
        BadCase{"stages_of_another_number", "megatron,pp=3,stages=4+4",
                "sharding \"megatron,pp=3,stages=4+4\": stages lists 2 stages, and pp=3 wants 3"},
        BadCase{
            "chunks_of_a_single_stage", "megatron,tp=2,vpp=2",
            "sharding \"megatron,tp=2,vpp=2\": vpp=2 with pp=1: Megatron has virtual stages only "
            "if pp is 2 or more"},
        BadCase{
            "chunks_that_do_not_divide_a_stage", "megatron,vpp=4,stages=4+6",
            "sharding \"megatron,vpp=4,stages=4+6\": vpp=4 does not divide the 6 layers of stage "
            "1; vpp may be 1, 2, 3 or 6"},
        BadCase{"chunks_of_another_framework", "fsdp2,pp=2,vpp=2",
                "sharding \"fsdp2,pp=2,vpp=2\": \"vpp\" is not one of fsdp, tp, pp, replicas, ep, "
                "stages, experts"},
        BadCase{"a_stage_without_layers", "pp=2,stages=4+0",
                "sharding \"pp=2,stages=4+0\": stages is \"0\", allowed are whole numbers from 1 "
                "to 65536"},
        BadCase{
            "an_unknown_choice", "megatron,qkv=mixed",
            "sharding \"megatron,qkv=mixed\": qkv is \"mixed\", allowed are interleaved, fused, "
            "split"}),
    [](const auto& info) { return std::string(info.param.name); });

class WorkerShardingRefusesTest : public testing::TestWithParam<BadCase> {};

TEST_P(WorkerShardingRefusesTest, AndSaysWhat) {
  EXPECT_EQ(WorkerSharding::Parse(GetParam().text).status().message(), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, WorkerShardingRefusesTest,
    testing::Values(
        BadCase{"another_word", "fsdp=2",
                "sharding \"fsdp=2\": \"fsdp\" is not one of tp, dp, ep, replicas, engine, "
                "experts, mxfp4"},
        BadCase{"a_kernel_of_another_engine", "tp=2,engine=sglang,mxfp4=cpu",
                "sharding \"tp=2,engine=sglang,mxfp4=cpu\": mxfp4=cpu names a kernel of vLLM, and "
                "engine is sglang"},
        BadCase{"another_engine", "tp=2,engine=tgi",
                "sharding \"tp=2,engine=tgi\": engine is \"tgi\", allowed are vllm, sglang"},
        BadCase{
            "experts_over_some_ranks_of_vllm", "tp=8,ep=4",
            "sharding \"tp=8,ep=4\": ep=4: vLLM deals experts to all tp*dp=8 ranks of an engine "
            "or to none; ep may be 1 or 8"},
        BadCase{"experts_over_more_ranks", "tp=8,ep=16",
                "sharding \"tp=8,ep=16\": ep=16 does not divide tp*dp=8; ep may be 1, 2, 4 or 8"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Divisors, AreListedInOrder) {
  EXPECT_EQ(Divisors(1), "1");
  EXPECT_EQ(Divisors(7), "1 or 7");
  EXPECT_EQ(Divisors(12), "1, 2, 3, 4, 6 or 12");
  EXPECT_EQ(Divisors(512), "1, 2, 4, 8, 16, 32, 64, 128, 256 or 512");
  EXPECT_EQ(Divisors(1024), "1, 2, 4, 8, 16, 32, 64, 128, 256, 512 or another divisor of 1024");
}

TEST(ExpertsOf, DealsWhatIsLeftOverToTheFirst) {
  std::vector<int64_t> counts;
  int64_t next = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const ExpertRange range = ExpertsOf({4, i}, 10);
    EXPECT_EQ(range.begin, next);
    next = range.end;
    counts.push_back(range.end - range.begin);
  }
  EXPECT_EQ(counts, (std::vector<int64_t>{3, 3, 2, 2}));
}

}  // namespace
}  // namespace waybill
