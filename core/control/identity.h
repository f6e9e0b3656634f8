// SPDX-License-Identifier: Apache-2.0

// Keys, by which the ends of a control channel prove who they are.
//
// The job's secret is an authority: whoever knows it can do everything, and can issue keys, which
// are certificates for less. So a rank's key gives away neither the secret nor another rank's
// rights. An operator's own X.509 authority can issue keys of the same form.
#ifndef WAYBILL_CORE_CONTROL_IDENTITY_H_
#define WAYBILL_CORE_CONTROL_IDENTITY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/control/rights.h"

namespace waybill {

// The host name in the certificate of each controller. It is constant, because only the key proves
// an identity. A rank's certificate does not have it, so a rank cannot be taken for a controller.
inline constexpr char kControllerName[] = "waybill";

// The key and certificates that an end presents, and the authorities that it trusts. All texts are
// PEM.
struct Identity {
  std::string private_key;
  std::string certificates;  // Its own, then those of intermediate authorities.
  std::string authorities;
};

// Reads a PEM text of a private key, its certificate, and the certificates of authorities. Those of
// them that another one has issued are presented, and those that have issued themselves are
// trusted. Without a private key there are only the latter. kInvalidArgument: it is not such a
// text.
absl::StatusOr<Identity> ReadPem(absl::string_view text);

// Returns the identity of a token, which JobToken() reads: a secret, or a key, which is a text as
// ReadPem() takes it, with a private key. kUnauthenticated: JobToken() failed, the text is not a
// key, or the key is not valid at `now`; kInternal: OpenSSL failed.
absl::StatusOr<Identity> IdentityOf(const std::string& token, absl::Time now);

// A key that is to be issued.
struct KeyRequest {
  Rights rights;
  absl::Time valid_from, valid_until;
};

// Returns a key (see IdentityOf) issued by the authority of a secret. kInvalidArgument: the token
// is itself a key, or the request is for an authority, lacks the job or a worker's group, or has no
// time in which it is valid.
absl::StatusOr<std::string> IssueKey(const std::string& token, const KeyRequest& request);

// The contents of a certificate. They are true only if a trusted authority has issued it.
struct CertificateInfo {
  Rights rights;
  std::string serial;  // In hexadecimal digits. An authority gives it to one certificate only.
  std::string issuer;  // As "CN=waybill 5b0ae1c2d3f40516".
  absl::Time valid_from, valid_until;
};

// Describes the key or the secret of a token, also if it is not valid now. kUnauthenticated,
// kPermissionDenied: it is neither.
absl::StatusOr<CertificateInfo> DescribeToken(const std::string& token);

// Describes the first certificate of a PEM text, which was verified if it comes from a peer. It
// is an authority's if it is among `authorities`. kPermissionDenied: it names no rights, or
// several.
absl::StatusOr<CertificateInfo> Describe(absl::string_view certificate,
                                         absl::string_view authorities);

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_IDENTITY_H_
