#include "core/control/fetch_status.h"

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/control/control.grpc.pb.h"

namespace waybill {

absl::StatusOr<proto::StatusReply> FetchStatus(const std::string& address, const std::string& token,
                                               absl::Duration timeout) {
  const auto stub =
      proto::Controller::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  proto::StatusRequest request;
  request.set_token(token);
  proto::StatusReply reply;
  const grpc::Status status = stub->GetStatus(&context, request, &reply);
  if (status.ok()) return reply;
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat("controller ", address, ": ", status.error_message()));
}

}  // namespace waybill
