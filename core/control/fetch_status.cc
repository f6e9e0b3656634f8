#include "core/control/fetch_status.h"

#include <grpcpp/grpcpp.h>

#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/control/control.grpc.pb.h"
#include "core/control/credentials.h"

namespace waybill {

absl::StatusOr<proto::StatusReply> FetchStatus(const std::string& address, const std::string& token,
                                               absl::Duration timeout) {
  WAYBILL_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                           OpenChannel(address, token, {}));
  const auto stub = proto::Controller::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  proto::StatusReply reply;
  const grpc::Status status = stub->GetStatus(&context, {}, &reply);
  if (status.ok()) return reply;
  return ChannelError(address, status);
}

}  // namespace waybill
