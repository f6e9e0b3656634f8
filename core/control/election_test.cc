// SPDX-License-Identifier: Apache-2.0

// The election of a leader, with an etcd that is a few variables.

#include "core/control/election.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace waybill {
namespace {

using Step = Election::Step;

// What etcd keeps and compares for an election.
class ModelEtcd {
 public:
  const Leadership& Read() const { return state_; }
  bool Beat(const std::string& identity) {
    if (state_.leader != identity) return false;
    state_.beat_revision = ++revision_;
    return true;
  }
  bool TakeOver(const std::string& identity, int64_t seen_beat_revision) {
    if (state_.beat_revision != seen_beat_revision) return false;
    state_ = {.leader = identity, .beat_revision = ++revision_};
    return true;
  }

 private:
  int64_t revision_ = 7;  // Others use the same etcd.
  Leadership state_;
};

// Reads until the standby would take over; returns how many reads that took, `most` if it did not.
int ReadsUntilTakeOver(Election& standby, const ModelEtcd& etcd, int most) {
  for (int reads = 1; reads <= most; ++reads) {
    if (standby.OnRead(etcd.Read()) == Step::kTakeOver) return reads;
  }
  return most;
}

TEST(Election, TheFirstOneLeadsAtOnce) {
  ModelEtcd etcd;
  Election standby("a");
  EXPECT_EQ(standby.OnRead(etcd.Read()), Step::kTakeOver);
  EXPECT_TRUE(etcd.TakeOver("a", 0));
  EXPECT_EQ(standby.OnRead(etcd.Read()), Step::kLead);
}

TEST(Election, ALeaderThatBeatsIsNeverDeposed) {
  ModelEtcd etcd;
  ASSERT_TRUE(etcd.TakeOver("leader", 0));
  Election standby("a");
  for (int period = 0; period < 1000; ++period) {
    // The beat is late now and then, and a read may come just before or after it.
    if (period % 5 != 4) {
      ASSERT_TRUE(etcd.Beat("leader"));
    }
    EXPECT_EQ(standby.OnRead(etcd.Read()), Step::kWait) << period;
  }
}

TEST(Election, ALeaderThatStopsBeatingIsReplacedAfterSixReads) {
  ModelEtcd etcd;
  ASSERT_TRUE(etcd.TakeOver("leader", 0));
  Election standby("a");
  EXPECT_EQ(standby.OnRead(etcd.Read()), Step::kWait);
  ASSERT_TRUE(etcd.Beat("leader"));
  EXPECT_EQ(ReadsUntilTakeOver(standby, etcd, 100), kReadsOfDeadLeader);
}

TEST(Election, OfTwoStandbysOneWinsAndTheOtherWaitsForTheNextDeath) {
  ModelEtcd etcd;
  ASSERT_TRUE(etcd.TakeOver("leader", 0));
  Election a("a"), b("b");
  ReadsUntilTakeOver(a, etcd, 100);
  ReadsUntilTakeOver(b, etcd, 100);
  const int64_t seen = etcd.Read().beat_revision;
  EXPECT_TRUE(etcd.TakeOver("b", seen));
  EXPECT_FALSE(etcd.TakeOver("a", seen));
  EXPECT_EQ(b.OnRead(etcd.Read()), Step::kLead);
  EXPECT_EQ(ReadsUntilTakeOver(a, etcd, 100), kReadsOfDeadLeader);
}

TEST(Election, ABeatBetweenTheLastReadAndTakingOverSavesTheLeader) {
  ModelEtcd etcd;
  ASSERT_TRUE(etcd.TakeOver("leader", 0));
  Election standby("a");
  ReadsUntilTakeOver(standby, etcd, 100);
  const int64_t seen = etcd.Read().beat_revision;
  ASSERT_TRUE(etcd.Beat("leader"));
  EXPECT_FALSE(etcd.TakeOver("a", seen));
  EXPECT_EQ(standby.OnRead(etcd.Read()), Step::kWait);
}

TEST(Election, ADeposedLeaderFindsOutWithItsNextBeat) {
  ModelEtcd etcd;
  ASSERT_TRUE(etcd.TakeOver("leader", 0));
  ASSERT_TRUE(etcd.TakeOver("a", etcd.Read().beat_revision));
  EXPECT_FALSE(etcd.Beat("leader"));
}

// The leader cannot beat while etcd is away, and has to get the time for it afterwards.
TEST(Election, AnEtcdThatIsAwayDeposesNobody) {
  for (int reads_before = 0; reads_before < kReadsOfDeadLeader; ++reads_before) {
    ModelEtcd etcd;
    ASSERT_TRUE(etcd.TakeOver("leader", 0));
    Election standby("a");
    for (int i = 0; i < reads_before; ++i) EXPECT_EQ(standby.OnRead(etcd.Read()), Step::kWait);
    for (int i = 0; i < 1000; ++i) standby.OnReadFailed();
    for (int i = 0; i + 1 < kReadsOfDeadLeader; ++i) {
      EXPECT_EQ(standby.OnRead(etcd.Read()), Step::kWait) << reads_before << " " << i;
    }
    ASSERT_TRUE(etcd.Beat("leader"));
    EXPECT_EQ(standby.OnRead(etcd.Read()), Step::kWait);
  }
}

TEST(Election, ATakeoverWhoseAnswerWasLostIsFoundByTheNextRead) {
  ModelEtcd etcd;
  ASSERT_TRUE(etcd.TakeOver("leader", 0));
  Election standby("a");
  ReadsUntilTakeOver(standby, etcd, 100);
  ASSERT_TRUE(etcd.TakeOver("a", etcd.Read().beat_revision));
  standby.OnReadFailed();
  EXPECT_EQ(standby.OnRead(etcd.Read()), Step::kLead);
}

TEST(Election, ATakeoverThatNeverArrivedIsTriedAgain) {
  ModelEtcd etcd;
  ASSERT_TRUE(etcd.TakeOver("leader", 0));
  Election standby("a");
  ReadsUntilTakeOver(standby, etcd, 100);
  EXPECT_EQ(standby.OnRead(etcd.Read()), Step::kTakeOver);
}

}  // namespace
}  // namespace waybill
