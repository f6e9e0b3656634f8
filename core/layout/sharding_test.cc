#include "core/layout/sharding.h"

#include <gtest/gtest.h>

namespace waybill {
namespace {

TEST(TrainerSharding, ReadsWhatItPrints) {
  for (const char* text : {"whole", "fsdp=2", "fsdp=2,tp=4,pp=3,dp=5", "dp=65536"}) {
    const auto sharding = TrainerSharding::Parse(text);
    ASSERT_TRUE(sharding.ok()) << sharding.status();
    EXPECT_EQ(ToString(*sharding), text);
  }
  EXPECT_EQ(TrainerSharding::Parse("")->world(), 1u);
  EXPECT_EQ(TrainerSharding::Parse("tp=4,fsdp=2")->world(), 8u);
  EXPECT_EQ(TrainerSharding::Parse("3")->fsdp, 3u);
  EXPECT_EQ(WorkerSharding::Parse("3")->tp, 3u);
}

TEST(TrainerSharding, NumbersRanksWithTpFastestAndPpSlowest) {
  const TrainerSharding s{.fsdp = 3, .tp = 2, .pp = 2, .dp = 4};
  uint32_t rank = 0;
  for (uint32_t pp = 0; pp < s.pp; ++pp) {
    for (uint32_t dp = 0; dp < s.dp; ++dp) {
      for (uint32_t fsdp = 0; fsdp < s.fsdp; ++fsdp) {
        for (uint32_t tp = 0; tp < s.tp; ++tp, ++rank) {
          EXPECT_EQ(s.pp_rank(rank), pp);
          EXPECT_EQ(s.dp_rank(rank), dp);
          EXPECT_EQ(s.fsdp_rank(rank), fsdp);
          EXPECT_EQ(s.tp_rank(rank), tp);
        }
      }
    }
  }
  EXPECT_EQ(rank, s.world());
}

TEST(WorkerSharding, ReadsWhatItPrints) {
  const auto sharding = WorkerSharding::Parse("tp=2,dp=3");
  ASSERT_TRUE(sharding.ok()) << sharding.status();
  EXPECT_EQ(ToString(*sharding), "tp=2,dp=3");
  EXPECT_EQ(sharding->world(), 6u);
  EXPECT_EQ(sharding->tp_rank(5), 1u);
  EXPECT_EQ(sharding->dp_rank(5), 2u);
}

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
        BadCase{"another_word", "ep=2", "sharding \"ep=2\": \"ep\" is not one of fsdp, tp, pp, dp"},
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
        BadCase{"a_comma_at_the_end", "tp=2,",
                "sharding \"tp=2,\": \"\" is not one of fsdp, tp, pp, dp"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(WorkerSharding, HasNoOtherWords) {
  EXPECT_EQ(WorkerSharding::Parse("fsdp=2").status().message(),
            "sharding \"fsdp=2\": \"fsdp\" is not one of tp, dp");
}

}  // namespace
}  // namespace waybill
