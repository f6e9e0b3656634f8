// SPDX-License-Identifier: Apache-2.0

#include "core/control/ask_controller.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "core/control/control.grpc.pb.h"
#include "core/control/credentials.h"
#include "core/protocol/messages.pb.h"

namespace waybill {
namespace {

constexpr char kToken[] = "5ab1e-token-of-16";

// Answers one question, and is then too busy for the others until it is destroyed.
class BusyController : public proto::Controller::Service {
 public:
  explicit BusyController(const std::string& first_error) : first_error_(first_error) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", ServerIdentity::Of(kToken)->credentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  ~BusyController() override {
    ends_.Notify();
    server_->Shutdown();
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status Ask(grpc::ServerContext*, const proto::Question*, proto::Answer* answer) override {
    if (asked_++ > 0) ends_.WaitForNotification();
    answer->mutable_error()->set_message(first_error_);
    return grpc::Status::OK;
  }

 private:
  std::string first_error_;
  int port_ = 0;
  std::atomic<int> asked_ = 0;
  absl::Notification ends_;
  std::unique_ptr<grpc::Server> server_;
};

TEST(FetchTensors, TellsWhatTheJobWaitsForThoughTheLastQuestionHasNoAnswer) {
  const BusyController controller("trainer 1 of 2");
  const absl::Status status = FetchTensors(controller.address(), kToken, absl::Seconds(3)).status();
  EXPECT_EQ(status, absl::DeadlineExceededError("the job waits for trainer 1 of 2"));
}

}  // namespace
}  // namespace waybill
