// SPDX-License-Identifier: Apache-2.0

// Credentials by which a job's controller and its clients prove to each other who they are.
#ifndef WAYBILL_CORE_CONTROL_CREDENTIALS_H_
#define WAYBILL_CORE_CONTROL_CREDENTIALS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/control/identity.h"
#include "core/control/rights.h"

namespace waybill {

// The channel is TLS, and both ends present certificates that an authority of the other end has
// issued (identity.h). So the token never travels, and a server that is no controller of the job is
// rejected before a message is sent. The empty token stands for the user's own (job_token.h).
//
// A weak secret can be found by brute force, because a certificate shows whether a guess is right.
class ServerIdentity {
 public:
  // kUnauthenticated: the token is not valid; kPermissionDenied: it is the key of a rank, an
  // observer or an operator; kInternal: OpenSSL failed.
  static absl::StatusOr<ServerIdentity> Of(const std::string& token);

  // An authority's, or a controller's.
  const Rights& rights() const { return rights_; }
  const std::shared_ptr<grpc::ServerCredentials>& credentials() const { return credentials_; }
  // Describes the certificate of a peer with whom a handshake has succeeded. kPermissionDenied: it
  // names no rights.
  absl::StatusOr<CertificateInfo> Peer(const grpc::AuthContext& context) const;

 private:
  ServerIdentity(Rights rights, std::shared_ptr<grpc::ServerCredentials> credentials,
                 std::string authorities)
      : rights_(std::move(rights)),
        credentials_(std::move(credentials)),
        authorities_(std::move(authorities)) {}

  Rights rights_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;
  std::string authorities_;
};

// Opens a channel to the controller at `address`. `arguments` are used in addition to those that
// the credentials need. Reads the token's file again, if it has one, so that a key can be replaced
// while the process runs. Errors as ServerIdentity::Of().
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
