// SPDX-License-Identifier: Apache-2.0

// Proof, between a job's controller and whoever talks to it, that both know the job's token.
#ifndef WAYBILL_CORE_CONTROL_CREDENTIALS_H_
#define WAYBILL_CORE_CONTROL_CREDENTIALS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace waybill {

// The channel is TLS, and both ends show a certificate. Its private key is derived from the token,
// and an end takes no certificate but its own: the token itself never travels, and whoever listens
// on the controller's port without knowing it is refused before a message is sent. The empty token
// stands for the user's own (job_token.h).
//
// A token that can be guessed can be found by trying: a certificate tells whether a guess is right.
// kUnauthenticated: JobToken() gives none. kInternal: OpenSSL failed.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(
    const std::string& token);

// A channel to the controller at `address`, with `arguments` besides what the credentials need.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const std::string& token,
                                                           grpc::ChannelArguments arguments);

// Begins the status of a call that a standby has refused.
inline constexpr char kStandbyMark[] = "it is a standby ";

// Why a call to the controller at `address` ended with `status` before it was answered.
// kUnauthenticated: the two tokens differ; else kUnavailable.
absl::Status ChannelError(const std::string& address, const grpc::Status& status);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_CREDENTIALS_H_
