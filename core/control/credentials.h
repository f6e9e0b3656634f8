// SPDX-License-Identifier: Apache-2.0

// Credentials by which a job's controller and its clients prove to each other that they know the
// job's token.
#ifndef WAYBILL_CORE_CONTROL_CREDENTIALS_H_
#define WAYBILL_CORE_CONTROL_CREDENTIALS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace waybill {

// The channel is TLS, and both ends present a certificate. The certificate's private key is derived
// from the token, and an end accepts only its own certificate. So the token itself never travels,
// and a server that does not know the token is rejected before a message is sent. The empty token
// stands for the user's own (job_token.h).
//
// A weak token can be found by brute force, because a certificate shows whether a guess is right.
// kUnauthenticated: JobToken() failed. kInternal: OpenSSL failed.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(
    const std::string& token);

// Opens a channel to the controller at `address`. `arguments` are used in addition to those that
// the credentials need.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const std::string& token,
                                                           grpc::ChannelArguments arguments);

// The beginning of the error message with which a standby refuses a call.
inline constexpr char kStandbyMark[] = "it is a standby ";

// Returns the error of a call to the controller at `address` that ended with `status` before it was
// answered. kUnauthenticated: the two tokens differ; else kUnavailable.
absl::Status ChannelError(const std::string& address, const grpc::Status& status);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_CREDENTIALS_H_
