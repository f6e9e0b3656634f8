// SPDX-License-Identifier: Apache-2.0

#include "core/control/verify_inquiry.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

constexpr uint64_t kRequest = 7;

// Two workers, by streams 10 and 11.
class VerifyInquiryTest : public testing::Test {
 protected:
  void SetUp() override {
    inquiry_.Begin(kRequest, {{10, {Role::kWorker, 0, "a"}}, {11, {Role::kWorker, 0, "b"}}}, now_,
                   absl::Seconds(60), [this](std::vector<proto::Verified> reply) {
                     EXPECT_FALSE(reply_) << "it replies twice";
                     reply_ = std::move(reply);
                   });
  }
  void Answer(ConnectionId connection, const absl::Status& status, uint64_t request = kRequest) {
    proto::Verified verified;
    verified.set_request(request);
    verified.set_version(3);
    if (!status.ok()) *verified.mutable_error() = EncodeError(status);
    inquiry_.OnVerified(connection, verified);
  }
  // Returns the group, version and error of each worker.
  std::string Said() const {
    if (!reply_) return "nothing";
    std::string text;
    for (const proto::Verified& worker : *reply_) {
      absl::StrAppend(&text, worker.group(), " ", worker.version(), " ", worker.error().message(),
                      ";");
    }
    return text;
  }

  const absl::Time now_ = absl::UnixEpoch();
  VerifyInquiry inquiry_;
  std::optional<std::vector<proto::Verified>> reply_;
};

TEST_F(VerifyInquiryTest, RepliesOnceAllHaveAnswered) {
  Answer(11, absl::DataLossError("one piece differs"));
  EXPECT_EQ(Said(), "nothing");
  Answer(10, absl::OkStatus());
  EXPECT_EQ(Said(), "a 3 ;b 3 one piece differs;");
  EXPECT_FALSE(inquiry_.is_going_on());
  EXPECT_EQ(inquiry_.next_deadline(), absl::InfiniteFuture());
}

TEST_F(VerifyInquiryTest, NamesAWorkerThatIsGone) {
  Answer(10, absl::OkStatus());
  inquiry_.OnGone(12);
  EXPECT_EQ(Said(), "nothing");
  inquiry_.OnGone(11);
  EXPECT_EQ(Said(), "a 3 ;b 0 it is gone, and has not answered;");
}

TEST_F(VerifyInquiryTest, NamesAWorkerThatDoesNotAnswerInTime) {
  Answer(10, absl::OkStatus());
  inquiry_.OnTime(inquiry_.next_deadline() - absl::Nanoseconds(1));
  EXPECT_EQ(Said(), "nothing");
  inquiry_.OnTime(now_ + absl::Seconds(60));
  EXPECT_EQ(Said(), "a 3 ;b 0 it has not answered within 1m;");
  Answer(11, absl::OkStatus());  // Too late.
}

TEST_F(VerifyInquiryTest, CountsNoSecondAnswerAndNoneOfAnotherRequestOrStream) {
  Answer(10, absl::OkStatus());
  Answer(10, absl::DataLossError("second"));
  Answer(11, absl::OkStatus(), kRequest - 1);
  Answer(12, absl::OkStatus());
  EXPECT_EQ(Said(), "nothing");
  Answer(11, absl::OkStatus());
  EXPECT_EQ(Said(), "a 3 ;b 3 ;");
}

TEST_F(VerifyInquiryTest, RepeatsNoErrorOfAnyLength) {
  Answer(10, absl::DataLossError(std::string(1 << 20, 'x')));
  Answer(11, absl::OkStatus());
  EXPECT_EQ(Said(), "a 3 what it said is too long to repeat;b 3 ;");
}

TEST_F(VerifyInquiryTest, StopsWithWhatIsThere) {
  Answer(11, absl::OkStatus());
  inquiry_.Stop(absl::UnavailableError("the controller ends"));
  EXPECT_EQ(Said(), "a 0 the controller ends;b 3 ;");
}

}  // namespace
}  // namespace waybill
