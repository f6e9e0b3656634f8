#include "core/control/ask_controller.h"

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/control/control.grpc.pb.h"
#include "core/control/credentials.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

template <typename Reply, typename Request>
absl::StatusOr<Reply> Ask(const std::string& address, const std::string& token,
                          absl::Duration timeout,
                          grpc::Status (proto::Controller::Stub::*method)(grpc::ClientContext*,
                                                                          const Request&, Reply*),
                          const Request& request) {
  WAYBILL_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                           OpenChannel(address, token, {}));
  const auto stub = proto::Controller::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  Reply reply;
  const grpc::Status status = ((*stub).*method)(&context, request, &reply);
  if (status.ok()) return reply;
  return ChannelError(address, status);
}

}  // namespace

absl::StatusOr<proto::StatusReply> FetchStatus(const std::string& address, const std::string& token,
                                               absl::Duration timeout) {
  return Ask(address, token, timeout, &proto::Controller::Stub::GetStatus, proto::StatusRequest());
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

}  // namespace waybill
