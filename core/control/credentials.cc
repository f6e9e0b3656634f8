// SPDX-License-Identifier: Apache-2.0

#include "core/control/credentials.h"

#include <grpc/support/log.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <array>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/control/job_token.h"

namespace waybill {
namespace {

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, Freed<EVP_PKEY_CTX_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>>;
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;

// The subject of every certificate. It is constant, because only the key proves an identity.
constexpr char kName[] = "waybill";
constexpr size_t kKeyBytes = 32;  // Ed25519: RFC 8032, section 5.1.5.

const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// HKDF with SHA-256, RFC 5869.
Key DeriveKey(const std::string& token) {
  constexpr absl::string_view kPurpose = "control channel 1";
  const std::string secret = absl::StrCat("token:", token);
  const KeyContext context(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr));
  std::array<unsigned char, kKeyBytes> key;
  size_t size = key.size();
  if (context == nullptr || EVP_PKEY_derive_init(context.get()) != 1 ||
      EVP_PKEY_CTX_set_hkdf_md(context.get(), EVP_sha256()) != 1 ||
      EVP_PKEY_CTX_set1_hkdf_salt(context.get(), Bytes(kName), sizeof(kName) - 1) != 1 ||
      EVP_PKEY_CTX_set1_hkdf_key(context.get(), Bytes(secret), static_cast<int>(secret.size())) !=
          1 ||
      EVP_PKEY_CTX_add1_hkdf_info(context.get(), Bytes(kPurpose),
                                  static_cast<int>(kPurpose.size())) != 1 ||
      EVP_PKEY_derive(context.get(), key.data(), &size) != 1) {
    return nullptr;
  }
  return Key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, key.data(), size));
}

// Returns the same bytes for each owner of the key: Ed25519's signatures are deterministic.
Certificate SignOwn(EVP_PKEY* key) {
  Certificate certificate(X509_new());
  const Extension name(X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name,
                                           absl::StrCat("DNS:", kName).c_str()));
  if (certificate == nullptr || name == nullptr) return nullptr;
  X509* const made = certificate.get();
  X509_NAME* const subject = X509_get_subject_name(made);
  const bool done =
      X509_set_version(made, X509_VERSION_3) == 1 &&
      ASN1_INTEGER_set(X509_get_serialNumber(made), 1) == 1 &&
      // The certificate does not expire. To revoke a token, give the job another one.
      ASN1_TIME_set_string_X509(X509_getm_notBefore(made), "19700101000000Z") == 1 &&
      ASN1_TIME_set_string_X509(X509_getm_notAfter(made), "99991231235959Z") == 1 &&
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, Bytes(kName), -1, -1, 0) == 1 &&
      X509_set_issuer_name(made, subject) == 1 && X509_set_pubkey(made, key) == 1 &&
      X509_add_ext(made, name.get(), -1) == 1 && X509_sign(made, key, nullptr) > 0;
  return done ? std::move(certificate) : nullptr;
}

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

struct Identity {
  std::string private_key;  // In PEM.
  std::string certificate;
};

// Silences gRPC's own log, which repeats for each attempt what our errors say once.
void SilenceGrpc() {
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_verbosity(static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1));
}

// Both ends create credentials before they use gRPC in any other way.
absl::StatusOr<Identity> MakeIdentity(const std::string& given) {
  SilenceGrpc();
  WAYBILL_ASSIGN_OR_RETURN(const std::string token, JobToken(given));
  const Key key = DeriveKey(token);
  const Certificate certificate = key == nullptr ? nullptr : SignOwn(key.get());
  const Bio key_text(BIO_new(BIO_s_mem()));
  const Bio certificate_text(BIO_new(BIO_s_mem()));
  if (certificate == nullptr || key_text == nullptr || certificate_text == nullptr ||
      PEM_write_bio_PKCS8PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr,
                                    nullptr) != 1 ||
      PEM_write_bio_X509(certificate_text.get(), certificate.get()) != 1) {
    return absl::InternalError("control channel: OpenSSL made no key of the token");
  }
  return Identity{Text(key_text.get()), Text(certificate_text.get())};
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(
    const std::string& token) {
  WAYBILL_ASSIGN_OR_RETURN(const Identity own, MakeIdentity(token));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = own.certificate;
  options.pem_key_cert_pairs = {{own.private_key, own.certificate}};
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const std::string& token,
                                                           grpc::ChannelArguments arguments) {
  WAYBILL_ASSIGN_OR_RETURN(const Identity own, MakeIdentity(token));
  arguments.SetSslTargetNameOverride(kName);
  // Ignore http_proxy: the hosts of a job reach each other directly.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address,
                                   grpc::SslCredentials({.pem_root_certs = own.certificate,
                                                         .pem_private_key = own.private_key,
                                                         .pem_cert_chain = own.certificate}),
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
  return absl::UnavailableError(absl::StrCat("controller ", address, ": nobody answered", said,
                                             "; is it running, and is the address right?"));
}

}  // namespace waybill
