#include "core/control/ask_controller.h"

#include <grpcpp/grpcpp.h>

#include <memory>
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

template <typename Reply, typename Request>
using Method = grpc::Status (proto::Controller::Stub::*)(grpc::ClientContext*, const Request&,
                                                         Reply*);

template <typename Reply, typename Request>
absl::StatusOr<Reply> AskOne(const std::string& address, const std::string& token,
                             absl::Time deadline, Method<Reply, Request> method,
                             const Request& request) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // A job may have a hundred thousand tensors.
  WAYBILL_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                           OpenChannel(address, token, arguments));
  const auto stub = proto::Controller::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(ToGrpcDeadline(deadline));
  Reply reply;
  const grpc::Status status = ((*stub).*method)(&context, request, &reply);
  if (status.ok()) return reply;
  return ChannelError(address, status);
}

// Asks each address in turn; none takes more than its share of the time that is left.
template <typename Reply, typename Request>
absl::StatusOr<Reply> Ask(const std::string& addresses, const std::string& token,
                          absl::Duration timeout, Method<Reply, Request> method,
                          const Request& request) {
  const std::vector<std::string> all = SplitAddresses(addresses);
  const absl::Time deadline = SteadyNow() + timeout;
  absl::StatusOr<Reply> reply;
  for (size_t i = 0; i < all.size(); ++i) {
    const absl::Time now = SteadyNow();
    const absl::Time share = now + (deadline - now) / static_cast<int64_t>(all.size() - i);
    reply = AskOne(all[i], token, share, method, request);
    if (reply.ok() || !absl::IsUnavailable(reply.status())) return reply;
  }
  if (all.size() == 1) return reply;
  return While(absl::StrCat("one of ", all.size(), " controllers"), reply.status());
}

}  // namespace

absl::StatusOr<proto::StatusReply> FetchStatus(const std::string& address, const std::string& token,
                                               absl::Duration timeout,
                                               const proto::StatusRequest& request) {
  return Ask(address, token, timeout, &proto::Controller::Stub::GetStatus, request);
}

absl::StatusOr<Manifest> FetchTensors(const std::string& address, const std::string& token,
                                      absl::Duration timeout) {
  constexpr absl::Duration kPause = absl::Milliseconds(100);
  const absl::Time deadline = SteadyNow() + timeout;
  while (true) {
    WAYBILL_ASSIGN_OR_RETURN(const proto::TensorsReply reply,
                             Ask(address, token, deadline - SteadyNow(),
                                 &proto::Controller::Stub::GetTensors, proto::TensorsRequest()));
    if (reply.missing().empty()) return DecodeManifest(reply.manifest());
    if (SteadyNow() + kPause > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("the job waits for ", reply.missing()));
    }
    absl::SleepFor(kPause);
  }
}

absl::StatusOr<uint32_t> RemoveGroup(const std::string& address, const std::string& token,
                                     const std::string& group, absl::Duration timeout) {
  proto::RemoveGroupRequest request;
  request.set_group(group);
  WAYBILL_ASSIGN_OR_RETURN(
      const proto::RemoveGroupReply reply,
      Ask(address, token, timeout, &proto::Controller::Stub::RemoveGroup, request));
  if (reply.has_error()) return DecodeError(reply.error());
  return reply.workers();
}

absl::StatusOr<proto::VerifyReply> VerifyWorkers(const std::string& address,
                                                 const std::string& token, const std::string& group,
                                                 absl::Duration patience) {
  constexpr absl::Duration kAnswerMargin = absl::Seconds(5);
  proto::VerifyRequest request;
  request.set_group(group);
  request.set_timeout_ms(absl::ToInt64Milliseconds(patience));
  // Each address has its share of the time, and the one that leads needs all of `patience`.
  const auto addresses = static_cast<int64_t>(SplitAddresses(address).size());
  WAYBILL_ASSIGN_OR_RETURN(proto::VerifyReply reply,
                           Ask(address, token, addresses * (patience + kAnswerMargin),
                               &proto::Controller::Stub::Verify, request));
  if (reply.has_error()) return DecodeError(reply.error());
  return reply;
}

}  // namespace waybill
