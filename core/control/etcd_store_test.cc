// SPDX-License-Identifier: Apache-2.0

// Decisions in a real etcd: what is found again, who may write, and what lost messages leave
// behind.

#include "core/control/etcd_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/steady_now.h"
#include "core/control/candidate.h"
#include "testing/etcd/etcd_process.h"

namespace waybill {
namespace {

using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using testing::HasSubstr;
using Decisions = std::vector<Decision>;

constexpr char kJob[] = "a job";
constexpr absl::Duration kPatience = absl::Seconds(30);

Decision Of(uint64_t version, const std::string& group = "a group") {
  return {version * 100, static_cast<uint32_t>(version), version, group};
}

// An etcd whose next transactions go wrong as the test says.
class UnreliableEtcd final : public Etcd {
 public:
  enum class Fault {
    kLoseRequest,
    kLoseAnswer,
    kDelay,  // Lost for whoever asked; DeliverLate() carries it out.
    kRefuse,
  };

  explicit UnreliableEtcd(std::shared_ptr<Etcd> etcd) : etcd_(std::move(etcd)) {}

  // The next transaction fails so; then `meanwhile` is done.
  void Fail(Fault fault, std::function<void()> meanwhile = [] {}) {
    faults_.emplace_back(fault, std::move(meanwhile));
  }
  absl::StatusOr<TxnResponse> DeliverLate() { return etcd_->Txn(late_); }

  absl::StatusOr<RangeResponse> Range(const RangeRequest& request) override {
    return etcd_->Range(request);
  }
  absl::StatusOr<TxnResponse> Txn(const TxnRequest& request) override {
    if (faults_.empty()) return etcd_->Txn(request);
    const auto [fault, meanwhile] = std::move(faults_.front());
    faults_.pop_front();
    if (fault == Fault::kLoseAnswer) {
      EXPECT_TRUE(etcd_->Txn(request).ok());
    }
    if (fault == Fault::kDelay) late_ = request;
    meanwhile();
    if (fault == Fault::kRefuse) return absl::ResourceExhaustedError("database space exceeded");
    return absl::DeadlineExceededError("no answer");
  }

 private:
  const std::shared_ptr<Etcd> etcd_;
  std::deque<std::pair<Fault, std::function<void()>>> faults_;
  TxnRequest late_;
};

using Fault = UnreliableEtcd::Fault;

class EtcdStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    process_ = EtcdProcess::Start();
    if (process_ == nullptr) GTEST_SKIP() << "no etcd here; tools/setup installs it";
    etcd_ = Etcd::Connect({process_->address()});
    unreliable_ = std::make_shared<UnreliableEtcd>(etcd_);
  }

  // Makes `identity` the leader, whoever it was before. An etcd that was just started may refuse.
  void Crown(const std::string& identity) {
    TxnRequest request;
    AddPut(request, EtcdKeys(kJob).identity, identity);
    const absl::Time deadline = SteadyNow() + kPatience;
    absl::StatusOr<TxnResponse> done = etcd_->Txn(request);
    while (!done.ok() && SteadyNow() < deadline) done = etcd_->Txn(request);
    EXPECT_TRUE(done.ok()) << done.status();
  }

  std::unique_ptr<EtcdStore> OpenAs(const std::string& identity) {
    Crown(identity);
    auto store = EtcdStore::Open(unreliable_, kJob, identity);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  Decisions Found() { return OpenAs("whoever looks")->decisions(); }

  std::unique_ptr<EtcdProcess> process_;
  std::shared_ptr<Etcd> etcd_;
  std::shared_ptr<UnreliableEtcd> unreliable_;
};

// --- records ---

TEST_F(EtcdStoreTest, WhatIsForgottenIsNotFoundAgain) {
  const auto store = OpenAs("first");
  EXPECT_EQ(store->Append(Of(5)).first, Recorded::kDurable);
  EXPECT_EQ(store->Append(Of(6, "b")).first, Recorded::kDurable);
  store->Forget("a group");
  store->Forget("never heard of");
  EXPECT_EQ(Found(), (Decisions{Of(6, "b")}));
}

TEST_F(EtcdStoreTest, AGroupThatWasForgottenDecidesAgain) {
  const auto store = OpenAs("first");
  for (const bool lost : {false, true}) {
    SCOPED_TRACE(lost);
    EXPECT_EQ(store->Append(Of(5)).first, Recorded::kDurable);
    if (lost) unreliable_->Fail(Fault::kLoseAnswer);
    store->Forget("a group");
    EXPECT_EQ(store->Append(Of(6)).first, Recorded::kDurable);
  }
  EXPECT_EQ(Found(), (Decisions{Of(6)}));
}

TEST_F(EtcdStoreTest, WhoDoesNotLeadForgetsNothing) {
  const auto store = OpenAs("first");
  EXPECT_EQ(store->Append(Of(5)).first, Recorded::kDurable);
  Crown("second");
  store->Forget("a group");
  EXPECT_EQ(Found(), (Decisions{Of(5)}));
}

TEST_F(EtcdStoreTest, TheDecisionsOfManyGroupsAreFound) {
  const auto store = OpenAs("first");
  constexpr int kGroups = 400;  // More than 4 MiB in all, as groups' names are long here.
  const std::string name(12 << 10, 'g');
  for (int i = 0; i < kGroups; ++i) {
    ASSERT_EQ(store->Append(Of(5, absl::StrCat(name, i))).first, Recorded::kDurable);
  }
  EXPECT_EQ(Found().size(), size_t{kGroups});
}

TEST_F(EtcdStoreTest, WhatWasRecordedIsFoundByTheNextLeader) {
  const auto store = OpenAs("first");
  EXPECT_TRUE(store->decisions().empty());
  EXPECT_EQ(store->Append(Of(5)).first, Recorded::kDurable);
  EXPECT_EQ(store->Append(Of(6, "b/c d")).first, Recorded::kDurable);
  const auto next = OpenAs("second");
  EXPECT_EQ(next->decisions(), (Decisions{Of(5), Of(6, "b/c d")}));
  EXPECT_EQ(next->Append(Of(7)).first, Recorded::kDurable);
  EXPECT_EQ(Found(), (Decisions{Of(5), Of(7), Of(6, "b/c d")}));
}

TEST_F(EtcdStoreTest, RecordsOutliveAnEtcdThatIsKilled) {
  const auto store = OpenAs("first");
  EXPECT_EQ(store->Append(Of(5)).first, Recorded::kDurable);
  process_->Kill();
  process_->Restart();
  EXPECT_EQ(store->Append(Of(6)).first, Recorded::kDurable);
  EXPECT_EQ(Found(), (Decisions{Of(5), Of(6)}));
}

TEST_F(EtcdStoreTest, TheLastFewOfEachGroupAreKept) {
  const auto store = OpenAs("first");
  for (uint64_t version = 1; version <= 10; ++version) {
    ASSERT_EQ(store->Append(Of(version)).first, Recorded::kDurable);
  }
  ASSERT_EQ(store->Append(Of(11, "b")).first, Recorded::kDurable);
  EXPECT_EQ(Found(), (Decisions{Of(7), Of(8), Of(9), Of(10), Of(11, "b")}));
}

TEST_F(EtcdStoreTest, JobsDoNotSeeEachOther) {
  ASSERT_EQ(OpenAs("first")->Append(Of(5)).first, Recorded::kDurable);
  const auto other = EtcdStore::Open(etcd_, "a jo", "first");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE((*other)->decisions().empty());
}

TEST_F(EtcdStoreTest, AKeyThatHoldsSomethingElseIsAnError) {
  Crown("first");
  TxnRequest request;
  AddPut(request, EtcdKeys(kJob).decisions + "a group", "shopping: milk\n");
  ASSERT_TRUE(etcd_->Txn(request).ok());
  const absl::Status status = EtcdStore::Open(etcd_, kJob, "first").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"shopping: milk\""));
}

// --- who may write ---

TEST_F(EtcdStoreTest, ADeposedLeaderRecordsNothing) {
  const auto store = OpenAs("first");
  ASSERT_EQ(store->Append(Of(5)).first, Recorded::kDurable);
  Crown("second");
  const auto [recorded, status] = store->Append(Of(6));
  EXPECT_EQ(recorded, Recorded::kNotRecorded);
  EXPECT_EQ(status.message(), "this controller does not lead any more; the leader is \"second\"");
  EXPECT_EQ(Found(), Decisions{Of(5)});
}

TEST_F(EtcdStoreTest, AnEtcdThatRefusesRecordsNothingAndTheNextDecisionIsWhole) {
  const auto store = OpenAs("first");
  unreliable_->Fail(Fault::kRefuse);
  EXPECT_EQ(store->Append(Of(5)).first, Recorded::kNotRecorded);
  EXPECT_EQ(store->Append(Of(6)).first, Recorded::kDurable);
  EXPECT_EQ(Found(), Decisions{Of(6)});
}

// --- lost messages ---

TEST_F(EtcdStoreTest, ADecisionIsRecordedOnceWhateverIsLost) {
  const auto store = OpenAs("first");
  uint64_t version = 0;
  for (const std::vector<Fault>& faults : {std::vector<Fault>{Fault::kLoseRequest},
                                           {Fault::kLoseAnswer},
                                           {Fault::kLoseAnswer, Fault::kLoseAnswer},
                                           {Fault::kLoseRequest, Fault::kLoseAnswer}}) {
    for (const Fault fault : faults) unreliable_->Fail(fault);
    EXPECT_EQ(store->Append(Of(++version)).first, Recorded::kDurable) << version;
  }
  EXPECT_EQ(Found(), (Decisions{Of(1), Of(2), Of(3), Of(4)}));
}

TEST_F(EtcdStoreTest, ARecordBeforeTheLeaderWasDeposedCountsThoughItsAnswerWasLost) {
  const auto store = OpenAs("first");
  unreliable_->Fail(Fault::kLoseAnswer, [&] { Crown("second"); });
  EXPECT_EQ(store->Append(Of(5)).first, Recorded::kDurable);
  EXPECT_EQ(Found(), Decisions{Of(5)});
}

TEST_F(EtcdStoreTest, ARequestThatWasLostBeforeTheLeaderWasDeposedRecordsNothing) {
  const auto store = OpenAs("first");
  ASSERT_EQ(store->Append(Of(5)).first, Recorded::kDurable);
  unreliable_->Fail(Fault::kLoseRequest, [&] { Crown("second"); });
  EXPECT_EQ(store->Append(Of(6)).first, Recorded::kNotRecorded);
  EXPECT_EQ(Found(), Decisions{Of(5)});
}

TEST_F(EtcdStoreTest, WhatTheNextLeaderMayHavePushedOutIsUnknown) {
  const auto store = OpenAs("first");
  unreliable_->Fail(Fault::kLoseAnswer, [&] {
    Crown("second");
    const auto second = EtcdStore::Open(etcd_, kJob, "second");
    ASSERT_TRUE(second.ok()) << second.status();
    for (uint64_t version = 6; version < 6 + kDecisionsKept; ++version) {
      ASSERT_EQ((*second)->Append(Of(version)).first, Recorded::kDurable);
    }
  });
  EXPECT_EQ(store->Append(Of(5)).first, Recorded::kUnknown);
  EXPECT_EQ(store->Append(Of(6)).first, Recorded::kUnknown);
}

TEST_F(EtcdStoreTest, ATransactionThatIsLateErasesNoLaterDecision) {
  const auto store = OpenAs("first");
  unreliable_->Fail(Fault::kDelay);
  ASSERT_EQ(store->Append(Of(5)).first, Recorded::kDurable);
  ASSERT_EQ(store->Append(Of(6)).first, Recorded::kDurable);
  const auto late = unreliable_->DeliverLate();
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_FALSE(late->succeeded());
  EXPECT_EQ(Found(), (Decisions{Of(5), Of(6)}));
}

TEST_F(EtcdStoreTest, ATransactionThatIsLateRecordsNothingForALeaderThatWasDeposed) {
  const auto store = OpenAs("first");
  unreliable_->Fail(Fault::kDelay, [&] { Crown("second"); });
  ASSERT_EQ(store->Append(Of(5)).first, Recorded::kNotRecorded);
  const auto late = unreliable_->DeliverLate();
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_FALSE(late->succeeded());
  EXPECT_TRUE(Found().empty());
}

TEST_F(EtcdStoreTest, AnEtcdThatIsAwayLeavesTheDecisionUnknownAndEndsTheStore) {
  Crown("first");
  const auto store = EtcdStore::Open(etcd_, kJob, "first", absl::Milliseconds(300));
  ASSERT_TRUE(store.ok()) << store.status();
  process_->Kill();
  const auto [recorded, status] = (*store)->Append(Of(5));
  EXPECT_EQ(recorded, Recorded::kUnknown);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("etcd " + process_->address() + ": write: "));
  process_->Restart();
  EXPECT_EQ((*store)->Append(Of(6)).first, Recorded::kUnknown);
  EXPECT_TRUE(Found().empty());
}

TEST_F(EtcdStoreTest, AnotherEndpointIsAskedWhereOneIsAway) {
  Crown("first");
  const std::shared_ptr<Etcd> etcd = Etcd::Connect({"127.0.0.1:1", process_->address()});
  const auto store = EtcdStore::Open(etcd, kJob, "first");
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->Append(Of(5)).first, Recorded::kDurable);
}

// --- candidates ---

class CandidateTest : public EtcdStoreTest {
 protected:
  // Waits for a role; each look asks etcd something, which takes time.
  bool Becomes(const Candidate& candidate, Candidate::Role role) {
    const absl::Time deadline = SteadyNow() + kPatience;
    while (candidate.state().role != role && SteadyNow() < deadline) {
      (void)etcd_->Range(ReadPrefix(EtcdKeys(kJob).leadership));
    }
    return candidate.state().role == role;
  }
};

TEST_F(CandidateTest, OneLeadsAndTheOtherFollowsItOnceItIsGone) {
  auto first = std::make_unique<Candidate>(etcd_, kJob, "10.0.0.1:7070");
  ASSERT_TRUE(Becomes(*first, Candidate::Role::kLeader));
  const Candidate second(etcd_, kJob, "10.0.0.2:7070");
  const auto leader = EtcdStore::Open(etcd_, kJob, first->identity());
  ASSERT_TRUE(leader.ok()) << leader.status();
  EXPECT_EQ((*leader)->Append(Of(5)).first, Recorded::kDurable);
  first.reset();
  ASSERT_TRUE(Becomes(second, Candidate::Role::kLeader));
  EXPECT_EQ(second.state().leader_address, "10.0.0.2:7070");
  EXPECT_EQ((*leader)->Append(Of(6)).first, Recorded::kNotRecorded);
  const auto next = EtcdStore::Open(etcd_, kJob, second.identity());
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ((*next)->decisions(), Decisions{Of(5)});
}

TEST_F(CandidateTest, ALeaderThatWasReplacedFindsOut) {
  const Candidate candidate(etcd_, kJob, "10.0.0.1:7070");
  ASSERT_TRUE(Becomes(candidate, Candidate::Role::kLeader));
  Crown("somebody else");
  EXPECT_TRUE(Becomes(candidate, Candidate::Role::kDeposed));
}

TEST_F(CandidateTest, ALeaderStaysOneWhileEtcdIsAway) {
  const Candidate candidate(etcd_, kJob, "10.0.0.1:7070");
  ASSERT_TRUE(Becomes(candidate, Candidate::Role::kLeader));
  process_->Kill();
  const absl::Time deadline = SteadyNow() + kPatience;
  while (candidate.state().trouble.ok() && SteadyNow() < deadline) {
    (void)etcd_->Range(ReadPrefix(EtcdKeys(kJob).leadership));
  }
  EXPECT_THAT(std::string(candidate.state().trouble.message()), HasSubstr("beat: etcd 127.0.0.1:"));
  EXPECT_EQ(candidate.state().role, Candidate::Role::kLeader);
  process_->Restart();
  while (!candidate.state().trouble.ok() && SteadyNow() < deadline) {
    (void)etcd_->Range(ReadPrefix(EtcdKeys(kJob).leadership));
  }
  EXPECT_EQ(candidate.state().role, Candidate::Role::kLeader);
}

// --- addresses ---

struct AddressCase {
  std::string name;
  std::string state;
  std::vector<std::string> endpoints;  // None: it is refused.
};
const AddressCase kAddressCases[] = {
    {"one", "etcd://10.0.0.1:2379", {"10.0.0.1:2379"}},
    {"three", "etcd://a:1,b:2,[::1]:3", {"a:1", "b:2", "[::1]:3"}},
    {"nothing", "etcd://", {}},
    {"no_port", "etcd://a", {}},
    {"an_empty_port", "etcd://a:", {}},
    {"an_empty_host", "etcd://:2379", {}},
    {"an_empty_one", "etcd://a:1,", {}},
    {"a_folder", "etcd://a:1/waybill", {}},
};

class EtcdAddressTest : public testing::TestWithParam<AddressCase> {};

TEST_P(EtcdAddressTest, IsAListOfHostsAndPorts) {
  const auto endpoints = ParseEtcdAddress(GetParam().state);
  if (!GetParam().endpoints.empty()) {
    ASSERT_TRUE(endpoints.ok()) << endpoints.status();
    EXPECT_EQ(*endpoints, GetParam().endpoints);
  } else {
    EXPECT_EQ(endpoints.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(endpoints.status().message()), HasSubstr(GetParam().state));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EtcdAddressTest, testing::ValuesIn(kAddressCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace waybill
