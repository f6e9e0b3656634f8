// SPDX-License-Identifier: Apache-2.0

#include "core/control/identity.h"

#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
void FreeText(char* text) { OPENSSL_free(text); }
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, Freed<EVP_PKEY_CTX_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;
using Number = std::unique_ptr<BIGNUM, Freed<BN_free>>;
using Text = std::unique_ptr<char, Freed<FreeText>>;
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;

constexpr size_t kKeyBytes = 32;  // Ed25519: RFC 8032, section 5.1.5.

// Leaves the thread's list of OpenSSL's errors as it was: TLS in this thread, also that of the
// program around this library, would take them for its own.
class ErrorsAsBefore {
 public:
  ErrorsAsBefore() { ERR_set_mark(); }
  ~ErrorsAsBefore() { ERR_pop_to_mark(); }
  ErrorsAsBefore(const ErrorsAsBefore&) = delete;
  ErrorsAsBefore& operator=(const ErrorsAsBefore&) = delete;
};

absl::Status OpenSslFailed() {
  return absl::InternalError("control channel: OpenSSL made no key of the token");
}

const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// --- certificates ---

bool Extend(X509* certificate, int nid, const char* value) {
  const Extension extension(X509V3_EXT_conf_nid(nullptr, nullptr, nid, value));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool SetTimes(X509* certificate, absl::Time from, absl::Time until) {
  const auto text = [](absl::Time time) {
    return absl::FormatTime("%Y%m%d%H%M%SZ", time, absl::UTCTimeZone());
  };
  return ASN1_TIME_set_string_X509(X509_getm_notBefore(certificate), text(from).c_str()) == 1 &&
         ASN1_TIME_set_string_X509(X509_getm_notAfter(certificate), text(until).c_str()) == 1;
}

bool SetName(X509* certificate, absl::string_view name) {
  return X509_set_version(certificate, X509_VERSION_3) == 1 &&
         X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                                    Bytes(name), static_cast<int>(name.size()), -1, 0) == 1;
}

bool SetRandomSerial(X509* certificate) {
  constexpr int kBits = 127;  // RFC 5280, section 4.1.2.2: at most 20 bytes, and positive.
  const Number number(BN_new());
  return number != nullptr &&
         BN_rand(number.get(), kBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

// Returns a name that tells authorities apart: OpenSSL looks for an issuer by its name.
std::string NameOfAuthority(EVP_PKEY* key) {
  std::array<unsigned char, kKeyBytes> bytes;
  size_t size = bytes.size();
  if (EVP_PKEY_get_raw_public_key(key, bytes.data(), &size) != 1) return "";
  constexpr size_t kShown = 8;
  const absl::string_view shown(reinterpret_cast<const char*>(bytes.data()), kShown);
  return absl::StrCat(kControllerName, " ", absl::BytesToHexString(shown));
}

// Returns the same bytes for each owner of the key: Ed25519's signatures are deterministic.
Certificate CertifyAuthority(EVP_PKEY* key) {
  Certificate certificate(X509_new());
  if (certificate == nullptr) return nullptr;
  X509* const made = certificate.get();
  const bool done =
      SetName(made, NameOfAuthority(key)) &&
      ASN1_INTEGER_set(X509_get_serialNumber(made), 1) == 1 &&
      // It does not expire. To revoke a secret, give the job another one.
      ASN1_TIME_set_string_X509(X509_getm_notBefore(made), "19700101000000Z") == 1 &&
      ASN1_TIME_set_string_X509(X509_getm_notAfter(made), "99991231235959Z") == 1 &&
      X509_set_issuer_name(made, X509_get_subject_name(made)) == 1 &&
      X509_set_pubkey(made, key) == 1 && Extend(made, NID_basic_constraints, "critical,CA:TRUE") &&
      Extend(made, NID_key_usage, "critical,digitalSignature,keyCertSign") &&
      Extend(made, NID_subject_alt_name, absl::StrCat("DNS:", kControllerName).c_str()) &&
      X509_sign(made, key, nullptr) > 0;
  return done ? std::move(certificate) : nullptr;
}

struct Authority {
  Key key;
  Certificate certificate;
};

Certificate Certify(const KeyRequest& request, EVP_PKEY* key, const Authority& authority) {
  Certificate certificate(X509_new());
  if (certificate == nullptr) return nullptr;
  X509* const made = certificate.get();
  const bool controller = request.rights.role == KeyRole::kController;
  const std::string names = absl::StrCat(
      controller ? absl::StrCat("DNS:", kControllerName, ",") : "", "URI:", ToUri(request.rights));
  const bool done =
      SetName(made, absl::StrCat(kControllerName, " ", Name(request.rights.role))) &&
      SetRandomSerial(made) && SetTimes(made, request.valid_from, request.valid_until) &&
      X509_set_issuer_name(made, X509_get_subject_name(authority.certificate.get())) == 1 &&
      X509_set_pubkey(made, key) == 1 && Extend(made, NID_basic_constraints, "critical,CA:FALSE") &&
      Extend(made, NID_key_usage, "critical,digitalSignature") &&
      Extend(made, NID_ext_key_usage, controller ? "serverAuth" : "clientAuth") &&
      Extend(made, NID_subject_alt_name, names.c_str()) &&
      X509_sign(made, authority.key.get(), nullptr) > 0;
  return done ? std::move(certificate) : nullptr;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::string TextOf(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

// --- PEM ---

// By default OpenSSL asks for the password of an encrypted key on the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

Bio Reader(absl::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

template <typename Write>
std::string Written(const Write& write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || write(bio.get()) != 1) return "";
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string IssuerOf(X509* certificate) {
  return Written([&](BIO* bio) {
    const X509_NAME* const issuer = X509_get_issuer_name(certificate);
    return X509_NAME_print_ex(bio, issuer, /*indent=*/0, XN_FLAG_RFC2253) >= 0 ? 1 : 0;
  });
}

std::string TextOf(X509* certificate) {
  return Written([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

std::string TextOf(EVP_PKEY* key) {
  return Written([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

std::vector<Certificate> CertificatesIn(absl::string_view text) {
  std::vector<Certificate> certificates;
  const Bio bio = Reader(text);
  while (X509* found = PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr)) {
    certificates.emplace_back(found);
  }
  return certificates;
}

Key PrivateKeyIn(absl::string_view text) {
  return Key(PEM_read_bio_PrivateKey(Reader(text).get(), nullptr, NoPassword, nullptr));
}

// --- identities ---

bool IsKey(absl::string_view token) { return absl::StartsWith(token, "-----BEGIN "); }

// HKDF with SHA-256, RFC 5869.
Key DeriveKey(const std::string& secret) {
  constexpr absl::string_view kPurpose = "control channel 2";
  const std::string input = absl::StrCat("token:", secret);
  const KeyContext context(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr));
  std::array<unsigned char, kKeyBytes> key;
  size_t size = key.size();
  if (context == nullptr || EVP_PKEY_derive_init(context.get()) != 1 ||
      EVP_PKEY_CTX_set_hkdf_md(context.get(), EVP_sha256()) != 1 ||
      EVP_PKEY_CTX_set1_hkdf_salt(context.get(), Bytes(kControllerName),
                                  sizeof(kControllerName) - 1) != 1 ||
      EVP_PKEY_CTX_set1_hkdf_key(context.get(), Bytes(input), static_cast<int>(input.size())) !=
          1 ||
      EVP_PKEY_CTX_add1_hkdf_info(context.get(), Bytes(kPurpose),
                                  static_cast<int>(kPurpose.size())) != 1 ||
      EVP_PKEY_derive(context.get(), key.data(), &size) != 1) {
    return nullptr;
  }
  return Key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, key.data(), size));
}

absl::StatusOr<Authority> AuthorityOf(const std::string& secret) {
  Key key = DeriveKey(secret);
  Certificate certificate = key == nullptr ? nullptr : CertifyAuthority(key.get());
  if (certificate == nullptr) return OpenSslFailed();
  return Authority{std::move(key), std::move(certificate)};
}

absl::StatusOr<Identity> IdentityOfSecret(const std::string& secret) {
  WAYBILL_ASSIGN_OR_RETURN(const Authority authority, AuthorityOf(secret));
  const std::string text = TextOf(authority.certificate.get());
  return Identity{TextOf(authority.key.get()), text, text};
}

absl::Status CheckTimes(const CertificateInfo& info, absl::Time now) {
  const std::string whose =
      absl::StrCat("the key is that of ", ToString(info.rights), ", issued by ", info.issuer);
  if (now >= info.valid_until) {
    return absl::UnauthenticatedError(absl::StrCat(
        whose, ", and expired on ", TextOf(info.valid_until), "; `waybill keys issue` makes one"));
  }
  if (now < info.valid_from) {
    return absl::UnauthenticatedError(absl::StrCat(whose, ", and is valid from ",
                                                   TextOf(info.valid_from),
                                                   " on; this host's clock says ", TextOf(now)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Identity> IdentityOfKey(const std::string& text) {
  absl::StatusOr<Identity> identity = ReadPem(text);
  if (identity.ok() && !identity->private_key.empty()) return identity;
  return absl::UnauthenticatedError(
      "the token is a PEM text, but not a key: it has to hold a private key that is not encrypted, "
      "its certificate, and then the certificate of the authority that issued it");
}

absl::Status CheckRequest(const KeyRequest& request) {
  const Rights& rights = request.rights;
  if (rights.role == KeyRole::kAuthority) {
    return absl::InvalidArgumentError("issue a key: an authority is a secret, and has no key");
  }
  if (rights.job.empty()) return absl::InvalidArgumentError("issue a key: it needs a job");
  if ((rights.role == KeyRole::kWorker) == rights.group.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("issue a key: ", rights.group.empty() ? "a worker's needs a group"
                                                           : "only a worker's has a group"));
  }
  if (request.valid_until > request.valid_from) return absl::OkStatus();
  return absl::InvalidArgumentError("issue a key: it has to be valid for some time");
}

absl::StatusOr<Identity> Read(const std::string& token) {
  const ErrorsAsBefore errors;
  WAYBILL_ASSIGN_OR_RETURN(const std::string text, JobToken(token));
  return IsKey(text) ? IdentityOfKey(text) : IdentityOfSecret(text);
}

}  // namespace

absl::StatusOr<Identity> ReadPem(absl::string_view text) {
  const ErrorsAsBefore errors;
  const Key key = PrivateKeyIn(text);
  const std::vector<Certificate> certificates = CertificatesIn(text);
  Identity identity;
  for (const Certificate& certificate : certificates) {
    const bool own = key != nullptr && certificate == certificates.front();
    const bool trusted =
        !own && X509_check_issued(certificate.get(), certificate.get()) == X509_V_OK;
    absl::StrAppend(trusted ? &identity.authorities : &identity.certificates,
                    TextOf(certificate.get()));
  }
  const bool proves = key != nullptr && !certificates.empty() &&
                      X509_check_private_key(certificates.front().get(), key.get()) == 1;
  if (identity.authorities.empty() || proves == identity.certificates.empty()) {
    return absl::InvalidArgumentError(
        "the PEM text has to hold the certificate of an authority, and if it holds other ones, the "
        "first of them has to be that of its private key, which must not be encrypted");
  }
  if (proves) identity.private_key = TextOf(key.get());
  return identity;
}

absl::StatusOr<Identity> IdentityOf(const std::string& token, absl::Time now) {
  WAYBILL_ASSIGN_OR_RETURN(Identity identity, Read(token));
  WAYBILL_ASSIGN_OR_RETURN(const CertificateInfo info,
                           Describe(identity.certificates, identity.authorities));
  WAYBILL_RETURN_IF_ERROR(CheckTimes(info, now));
  return identity;
}

absl::StatusOr<CertificateInfo> DescribeToken(const std::string& token) {
  WAYBILL_ASSIGN_OR_RETURN(const Identity identity, Read(token));
  return Describe(identity.certificates, identity.authorities);
}

absl::StatusOr<std::string> IssueKey(const std::string& token, const KeyRequest& request) {
  const ErrorsAsBefore errors;
  WAYBILL_RETURN_IF_ERROR(CheckRequest(request));
  WAYBILL_ASSIGN_OR_RETURN(const std::string secret, JobToken(token));
  if (IsKey(secret)) {
    return absl::InvalidArgumentError(
        "issue a key: the token is a key itself, and only the job's secret issues keys");
  }
  WAYBILL_ASSIGN_OR_RETURN(const Authority authority, AuthorityOf(secret));
  const Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  const Certificate certificate = key == nullptr ? nullptr : Certify(request, key.get(), authority);
  if (certificate == nullptr) return OpenSslFailed();
  return absl::StrCat(TextOf(key.get()), TextOf(certificate.get()),
                      TextOf(authority.certificate.get()));
}

absl::StatusOr<CertificateInfo> Describe(absl::string_view certificate,
                                         absl::string_view authorities) {
  const ErrorsAsBefore errors;
  const std::vector<Certificate> certificates = CertificatesIn(certificate);
  if (certificates.empty()) return absl::PermissionDeniedError("there is no certificate");
  X509* const first = certificates.front().get();
  CertificateInfo info{.issuer = IssuerOf(first),
                       .valid_from = TimeOf(X509_get0_notBefore(first)),
                       .valid_until = TimeOf(X509_get0_notAfter(first))};
  const Number serial(ASN1_INTEGER_to_BN(X509_get0_serialNumber(first), nullptr));
  const Text digits(serial == nullptr ? nullptr : BN_bn2hex(serial.get()));
  if (digits != nullptr) info.serial = digits.get();
  if (absl::StrContains(authorities, TextOf(first))) return info;

  const Names names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(first, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> uris;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  if (uris.size() != 1) {
    return absl::PermissionDeniedError(
        absl::StrCat("the key's certificate names ", uris.size(),
                     " URIs; it needs one, such as waybill://JOB/worker/GROUP"));
  }
  absl::StatusOr<Rights> rights = ParseUri(uris.front());
  if (!rights.ok()) return absl::PermissionDeniedError(rights.status().message());
  info.rights = *std::move(rights);
  return info;
}

}  // namespace waybill
