// SPDX-License-Identifier: Apache-2.0

#include "core/control/ask_controller.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/control/control.grpc.pb.h"
#include "core/control/controller_addresses.h"
#include "core/control/credentials.h"
#include "core/control/grpc_deadline.h"
#include "core/protocol/message_codec.h"
#include "core/tensor/manifest_codec.h"

namespace waybill {
namespace {

absl::StatusOr<proto::Answer> AskOne(const std::string& address, const std::string& token,
                                     absl::Time deadline, const proto::Question& question) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // A job may have a hundred thousand tensors.
  WAYBILL_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                           OpenChannel(address, token, arguments));
  grpc::ClientContext context;
  context.set_deadline(ToGrpcDeadline(deadline));
  proto::Answer answer;
  const grpc::Status status = proto::Controller::NewStub(channel)->Ask(&context, question, &answer);
  if (status.ok()) return answer;
  return ChannelError(address, status);
}

// Asks each address in turn. An address gets at most its share of the remaining time. A
// controller's answer may also be an error.
absl::StatusOr<proto::Answer> Ask(const std::string& addresses, const std::string& token,
                                  absl::Duration timeout, const proto::Question& question) {
  const std::vector<std::string> all = SplitAddresses(addresses);
  const absl::Time deadline = SteadyNow() + timeout;
  absl::StatusOr<proto::Answer> answer;
  for (size_t i = 0; i < all.size(); ++i) {
    const absl::Time now = SteadyNow();
    const absl::Time share = now + (deadline - now) / static_cast<int64_t>(all.size() - i);
    answer = AskOne(all[i], token, share, question);
    if (answer.ok() || !absl::IsUnavailable(answer.status())) return answer;
  }
  if (all.size() == 1) return answer;
  return While(absl::StrCat("one of ", all.size(), " controllers"), answer.status());
}

// Like Ask(), but returns a controller's error as an error.
absl::StatusOr<proto::Answer> AskOrFail(const std::string& addresses, const std::string& token,
                                        absl::Duration timeout, const proto::Question& question) {
  WAYBILL_ASSIGN_OR_RETURN(proto::Answer answer, Ask(addresses, token, timeout, question));
  if (answer.has_error()) return DecodeError(answer.error());
  return answer;
}

}  // namespace

absl::StatusOr<proto::StatusReply> FetchStatus(const std::string& address, const std::string& token,
                                               absl::Duration timeout,
                                               const proto::StatusRequest& request) {
  proto::Question question;
  *question.mutable_status() = request;
  WAYBILL_ASSIGN_OR_RETURN(proto::Answer answer, AskOrFail(address, token, timeout, question));
  return std::move(*answer.mutable_status());
}

absl::StatusOr<Manifest> FetchTensors(const std::string& address, const std::string& token,
                                      absl::Duration timeout) {
  constexpr absl::Duration kPause = absl::Milliseconds(100);
  const absl::Time deadline = SteadyNow() + timeout;
  proto::Question question;
  question.set_tensors(true);
  std::string waits_for;  // The controller's last answer.
  while (true) {
    const absl::StatusOr<proto::Answer> answer =
        Ask(address, token, deadline - SteadyNow(), question);
    if (answer.ok() && !answer->has_error()) return DecodeManifest(answer->manifest());
    if (answer.ok()) waits_for = answer->error().message();
    // The last question may have too little time for an answer.
    if (SteadyNow() + kPause > deadline && !waits_for.empty()) {
      return absl::DeadlineExceededError(absl::StrCat("the job waits for ", waits_for));
    }
    WAYBILL_RETURN_IF_ERROR(answer.status());
    absl::SleepFor(kPause);
  }
}

absl::StatusOr<uint32_t> RemoveGroup(const std::string& address, const std::string& token,
                                     const std::string& group, absl::Duration timeout) {
  proto::Question question;
  question.set_removed_group(group);
  WAYBILL_ASSIGN_OR_RETURN(const proto::Answer answer,
                           AskOrFail(address, token, timeout, question));
  return answer.removed_workers();
}

absl::StatusOr<std::vector<proto::Verified>> VerifyWorkers(const std::string& address,
                                                           const std::string& token,
                                                           const std::string& group,
                                                           absl::Duration patience) {
  constexpr absl::Duration kAnswerMargin = absl::Seconds(5);
  proto::Question question;
  question.mutable_verify()->set_group(group);
  question.mutable_verify()->set_timeout_ms(absl::ToInt64Milliseconds(patience));
  // Each address gets an equal share of the time, and the leader needs all of `patience`.
  const auto addresses = static_cast<int64_t>(SplitAddresses(address).size());
  WAYBILL_ASSIGN_OR_RETURN(
      const proto::Answer answer,
      AskOrFail(address, token, addresses * (patience + kAnswerMargin), question));
  return std::vector<proto::Verified>(answer.verified().begin(), answer.verified().end());
}

}  // namespace waybill
