// SPDX-License-Identifier: Apache-2.0

#include "core/control/rights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/rank_id.h"

namespace waybill {
namespace {

const std::vector<Rights> kAll = {
    {KeyRole::kAuthority, "", ""},      {KeyRole::kController, "j", ""},
    {KeyRole::kTrainer, "j", ""},       {KeyRole::kWorker, "j", "a"},
    {KeyRole::kWorker, "j", "b"},       {KeyRole::kObserver, "j", ""},
    {KeyRole::kOperator, "j", ""},      {KeyRole::kTrainer, "another", ""},
    {KeyRole::kWorker, "another", "a"}, {KeyRole::kOperator, "another", ""},
};

proto::Join JoinAs(Role role, const std::string& group = "") {
  proto::Join join;
  join.set_role(static_cast<uint32_t>(role));
  join.set_group(group);
  return join;
}

// Returns the holders of kAll's rights that pass the check.
template <typename Check>
std::vector<std::string> Allowed(const Check& check) {
  std::vector<std::string> allowed;
  for (const Rights& rights : kAll) {
    const absl::Status status = check(rights);
    if (status.ok()) {
      allowed.push_back(ToString(rights));
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    }
  }
  return allowed;
}

TEST(Rights, SufficeForOneRoleOfOneJobAndOneGroup) {
  const auto join = [](const proto::Join& as) {
    return Allowed([&](const Rights& rights) { return CheckJoin(rights, "j", as); });
  };
  using testing::ElementsAre;
  EXPECT_THAT(join(JoinAs(Role::kTrainer)), ElementsAre("an authority", "a trainer in job \"j\""));
  EXPECT_THAT(join(JoinAs(Role::kWorker, "a")),
              ElementsAre("an authority", "a worker of group \"a\" in job \"j\""));
  EXPECT_THAT(join(JoinAs(Role::kWorker, "all")), ElementsAre("an authority"));
  proto::Join stranger;
  stranger.set_role(77);
  EXPECT_THAT(join(stranger), ElementsAre("an authority"));
}

TEST(Rights, SufficeForTheQuestionsOfARole) {
  const auto ask = [](const proto::Question& question) {
    return Allowed([&](const Rights& rights) { return CheckQuestion(rights, "j", question); });
  };
  proto::Question status, tensors, removed, verify;
  status.mutable_status();
  tensors.set_tensors(true);
  removed.set_removed_group("a");
  verify.mutable_verify();
  const std::string op = "an operator in job \"j\"", trainer = "a trainer in job \"j\"";
  using testing::ElementsAre;
  EXPECT_THAT(ask(status), ElementsAre("an authority", trainer, "an observer in job \"j\"", op));
  EXPECT_THAT(ask(tensors),
              ElementsAre("an authority", trainer, "a worker of group \"a\" in job \"j\"",
                          "a worker of group \"b\" in job \"j\"", op));
  EXPECT_THAT(ask(removed), ElementsAre("an authority", op));
  EXPECT_THAT(ask(verify), ElementsAre("an authority", op));
  EXPECT_THAT(ask(proto::Question()), ElementsAre("an authority", op));
}

TEST(Rights, WhatIsRefusedIsNamedWithWhoMayDoIt) {
  const Rights worker{KeyRole::kWorker, "j", "a"};
  EXPECT_EQ(CheckJoin(worker, "j", JoinAs(Role::kTrainer)).message(),
            "join as a trainer: the key is that of a worker of group \"a\" in job \"j\"; use the "
            "key of a trainer");
  EXPECT_EQ(CheckJoin(worker, "j", JoinAs(Role::kWorker, "b")).message(),
            "join as a worker of group \"b\": the key is that of a worker of group \"a\" in job "
            "\"j\"; use the key of a worker of that group");
  EXPECT_EQ(CheckJoin(worker, "k", JoinAs(Role::kWorker, "a")).message(),
            "the key is that of a worker of group \"a\" in job \"j\", and this is job \"k\"");
  proto::Question status;
  status.mutable_status();
  EXPECT_EQ(CheckQuestion(worker, "j", status).message(),
            "ask for the status: the key is that of a worker of group \"a\" in job \"j\"; use the "
            "key of an observer, an operator or a trainer");
}

TEST(Rights, AreWrittenAsAUriAndReadBack) {
  EXPECT_EQ(ToUri({KeyRole::kTrainer, "j", ""}), "waybill://j/trainer");
  EXPECT_EQ(ToUri({KeyRole::kWorker, "a/b", "é, ~1"}), "waybill://a%2Fb/worker/%C3%A9%2C%20~1");
  for (const Rights& rights : kAll) {
    if (rights.role == KeyRole::kAuthority) continue;
    EXPECT_EQ(ParseUri(ToUri(rights)).value(), rights);
  }
  std::string every_byte;
  for (int c = 0; c < 256; ++c) every_byte.push_back(static_cast<char>(c));
  const Rights odd{KeyRole::kWorker, every_byte, every_byte};
  EXPECT_EQ(ParseUri(ToUri(odd)).value(), odd);
}

TEST(Rights, AUriOfAnotherFormIsRefused) {
  for (const char* uri : {"",
                          "waybill:",
                          "waybill://",
                          "waybill://j",
                          "waybill://j/",
                          "waybill:///trainer",
                          "waybill://j/authority",
                          "waybill://j/somebody",
                          "waybill://j/trainer/a",
                          "waybill://j/trainer/",
                          "waybill://j/worker",
                          "waybill://j/worker/",
                          "waybill://j/worker/a/b",
                          "spiffe://j/trainer",
                          "Waybill://j/trainer",
                          "waybill://j%/trainer",
                          "waybill://j%2/trainer",
                          "waybill://%zz/trainer",
                          "waybill://%6A/trainer",
                          "waybill://%c3/trainer",
                          "waybill://j k/trainer"}) {
    EXPECT_EQ(ParseUri(uri).status().code(), absl::StatusCode::kInvalidArgument) << uri;
  }
}

}  // namespace
}  // namespace waybill
