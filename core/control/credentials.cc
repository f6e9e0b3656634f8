// SPDX-License-Identifier: Apache-2.0

#include "core/control/credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpc/support/log.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/base/status.h"

namespace waybill {
namespace {

// Silences gRPC's own log, which repeats for each attempt what our errors say once.
void SilenceGrpc() {
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_verbosity(static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1));
}

// Both ends create credentials before they use gRPC in any other way.
absl::StatusOr<Identity> OwnIdentity(const std::string& token) {
  SilenceGrpc();
  return IdentityOf(token, absl::Now());
}

}  // namespace

absl::StatusOr<ServerIdentity> ServerIdentity::Of(const std::string& token) {
  WAYBILL_ASSIGN_OR_RETURN(Identity own, OwnIdentity(token));
  WAYBILL_ASSIGN_OR_RETURN(const CertificateInfo info, Describe(own.certificates, own.authorities));
  if (info.rights.role != KeyRole::kAuthority && info.rights.role != KeyRole::kController) {
    return absl::PermissionDeniedError(
        absl::StrCat("controller: the key is that of ", ToString(info.rights),
                     "; use the job's secret or the key of a controller"));
  }
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = own.authorities;
  options.pem_key_cert_pairs = {{own.private_key, own.certificates}};
  return ServerIdentity(info.rights, grpc::SslServerCredentials(options),
                        std::move(own.authorities));
}

absl::StatusOr<CertificateInfo> ServerIdentity::Peer(const grpc::AuthContext& context) const {
  const auto found = context.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (found.empty()) return absl::PermissionDeniedError("there is no certificate");
  return Describe(absl::string_view(found.front().data(), found.front().size()), authorities_);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const std::string& token,
                                                           grpc::ChannelArguments arguments) {
  WAYBILL_ASSIGN_OR_RETURN(const Identity own, OwnIdentity(token));
  arguments.SetSslTargetNameOverride(kControllerName);
  // Ignore http_proxy: the hosts of a job reach each other directly.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address,
                                   grpc::SslCredentials({.pem_root_certs = own.authorities,
                                                         .pem_private_key = own.private_key,
                                                         .pem_cert_chain = own.certificates}),
                                   arguments);
}

absl::Status ChannelError(const std::string& address, const grpc::Status& status) {
  // gRPC has no status code for a failed handshake; this text is OpenSSL's.
  if (absl::StrContains(status.error_message(), "certificate verify failed")) {
    return absl::UnauthenticatedError(
        absl::StrCat("controller ", address,
                     ": its token is another one; is this the job's controller, and is "
                     "WAYBILL_TOKEN the same on both sides? Without it, each user has a token of "
                     "their own"));
  }
  if (absl::StartsWith(status.error_message(), kStandbyMark)) {
    return absl::UnavailableError(
        absl::StrCat("controller ", address, ": ", status.error_message()));
  }
  const std::string said = status.ok() ? "" : absl::StrCat(" (", status.error_message(), ")");
  // A server does not say why it refuses a certificate.
  const bool closed = absl::StrContains(status.error_message(), "Socket closed");
  return absl::UnavailableError(absl::StrCat(
      "controller ", address, ": nobody answered", said,
      closed ? "; is this a controller, and do the clocks of both hosts say that the key is valid?"
             : "; is it running, and is the address right?"));
}

}  // namespace waybill
