// SPDX-License-Identifier: Apache-2.0

#include "core/control/identity.h"

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <stdlib.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

constexpr char kSecret[] = "5ab1e-token-of-16";
const absl::Time kNow =
    absl::FromCivil(absl::CivilMinute(2026, 11, 29, 12, 0), absl::UTCTimeZone());
const Rights kWorkerOfA{KeyRole::kWorker, "j", "a"};

std::string Issue(const Rights& rights, const std::string& secret = kSecret) {
  return IssueKey(secret, {rights, kNow, kNow + absl::Hours(24)}).value();
}

TEST(Keys, SayWhoseTheyAreAndHowLongTheyHold) {
  const Identity identity = IdentityOf(Issue(kWorkerOfA), kNow).value();
  const CertificateInfo info = Describe(identity.certificates, identity.authorities).value();
  EXPECT_EQ(info.rights, kWorkerOfA);
  EXPECT_EQ(info.issuer.substr(0, 11), "CN=waybill ");
  EXPECT_EQ(info.issuer, DescribeToken(kSecret)->issuer);
  EXPECT_EQ(info.valid_from, kNow);
  EXPECT_EQ(info.valid_until, kNow + absl::Hours(24));
  EXPECT_EQ(info.serial.size(), 32u) << info.serial;
}

TEST(Keys, AreTrustedByTheSecretThatIssuedThem) {
  const Identity authority = IdentityOf(kSecret, kNow).value();
  EXPECT_EQ(authority.certificates, authority.authorities);
  EXPECT_EQ(Describe(authority.certificates, authority.authorities)->rights, Rights());
  EXPECT_EQ(IdentityOf(Issue(kWorkerOfA), kNow)->authorities, authority.authorities);
  EXPECT_NE(IdentityOf(Issue(kWorkerOfA, "another secret of 16"), kNow)->authorities,
            authority.authorities);
}

TEST(Keys, EachHasAPrivateKeyAndASerialOfItsOwn) {
  std::set<std::string> keys, serials;
  for (int i = 0; i < 16; ++i) {
    const Identity identity = IdentityOf(Issue(kWorkerOfA), kNow).value();
    keys.insert(identity.private_key);
    serials.insert(Describe(identity.certificates, identity.authorities)->serial);
  }
  EXPECT_EQ(keys.size(), 16u);
  EXPECT_EQ(serials.size(), 16u);
  EXPECT_FALSE(keys.contains(IdentityOf(kSecret, kNow)->private_key));
}

TEST(Keys, AreReadFromAFileEachTime) {
  const std::string path = testing::TempDir() + "key.pem";
  for (const Rights& rights : {kWorkerOfA, Rights{KeyRole::kObserver, "j", ""}}) {
    std::ofstream(path) << Issue(rights) << "\n";
    const Identity identity = IdentityOf("@" + path, kNow).value();
    EXPECT_EQ(Describe(identity.certificates, identity.authorities)->rights, rights);
  }
}

TEST(Keys, OutsideOfTheirTimeSayWhenItIsAndWhoIssuedThem) {
  const std::string key = Issue(kWorkerOfA), issuer = DescribeToken(key)->issuer;
  EXPECT_TRUE(IdentityOf(key, kNow + absl::Hours(24) - absl::Seconds(1)).ok());
  const absl::Status late = IdentityOf(key, kNow + absl::Hours(24)).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kUnauthenticated);
  const std::string whose =
      "the key is that of a worker of group \"a\" in job \"j\", issued by " + issuer;
  EXPECT_EQ(late.message(),
            whose + ", and expired on 2026-11-30 12:00 UTC; `waybill keys issue` makes one");
  const absl::Status early = IdentityOf(key, kNow - absl::Seconds(1)).status();
  EXPECT_EQ(early.message(), whose +
                                 ", and is valid from 2026-11-29 12:00 UTC on; this host's "
                                 "clock says 2026-11-29 11:59 UTC");
}

TEST(Keys, OutsideOfTheirTimeAreDescribed) {
  EXPECT_EQ(DescribeToken(Issue(kWorkerOfA))->rights, kWorkerOfA);
  EXPECT_EQ(DescribeToken(kSecret)->rights, Rights());
}

// TLS in the same thread takes an old error of OpenSSL's for its own.
TEST(Keys, LeaveNoErrorsOfOpenSslBehind) {
  ERR_clear_error();
  for (const std::string& token : {Issue(kWorkerOfA), std::string("-----BEGIN and nothing else")}) {
    (void)DescribeToken(token);
    EXPECT_EQ(ERR_peek_error(), 0u);
  }
}

TEST(Keys, AreIssuedBySecretsOnly) {
  EXPECT_EQ(
      IssueKey(Issue(kWorkerOfA), {kWorkerOfA, kNow, kNow + absl::Hours(1)}).status().message(),
      "issue a key: the token is a key itself, and only the job's secret issues keys");
  EXPECT_EQ(IssueKey("too short", {kWorkerOfA, kNow, kNow + absl::Hours(1)}).status().code(),
            absl::StatusCode::kUnauthenticated);
}

TEST(Keys, AreNotIssuedForWhatMakesNoSense) {
  const auto refusal = [](const Rights& rights, absl::Duration lifetime = absl::Hours(1)) {
    return std::string(IssueKey(kSecret, {rights, kNow, kNow + lifetime}).status().message());
  };
  EXPECT_EQ(refusal({}), "issue a key: an authority is a secret, and has no key");
  EXPECT_EQ(refusal({KeyRole::kTrainer, "", ""}), "issue a key: it needs a job");
  EXPECT_EQ(refusal({KeyRole::kWorker, "j", ""}), "issue a key: a worker's needs a group");
  EXPECT_EQ(refusal({KeyRole::kTrainer, "j", "a"}), "issue a key: only a worker's has a group");
  EXPECT_EQ(refusal(kWorkerOfA, absl::ZeroDuration()),
            "issue a key: it has to be valid for some time");
}

std::string Encrypted(const std::string& key) {
  const std::string path = testing::TempDir() + "encrypted.pem";
  std::ofstream(path + ".plain") << key;
  const std::string command =
      absl::StrCat("openssl pkey -aes256 -passout pass:secret -in ", path, ".plain -out ", path);
  EXPECT_EQ(system(command.c_str()), 0);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A rank's key, with the certificate or the private key of another one.
TEST(Keys, ThatAreNotOfOnePieceAreRefused) {
  const std::string key = Issue(kWorkerOfA), other = Issue(kWorkerOfA);
  const size_t certificate = key.find("-----BEGIN CERTIFICATE"),
               authority = key.rfind("-----BEGIN CERTIFICATE"),
               other_certificate = other.find("-----BEGIN CERTIFICATE");
  for (const std::string& wrong :
       {key.substr(0, certificate), key.substr(0, authority), key.substr(certificate),
        key.substr(0, certificate) + other.substr(other_certificate),
        Encrypted(key) + key.substr(certificate), std::string("-----BEGIN and nothing else")}) {
    const absl::Status status = IdentityOf(wrong, kNow).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
    EXPECT_TRUE(absl::StrContains(status.message(), "it has to hold a private key")) << status;
  }
}

// An operator's own authority, made with the openssl command as docs/operations/security.md says.
TEST(Keys, OfAnotherAuthorityAreTaken) {
  const std::string folder = testing::TempDir() + "own_authority";
  const std::string script = absl::StrCat(
      "set -e; mkdir -p ", folder, "; cd ", folder,
      "; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key "
      "-out ca.pem -subj '/O=Ours/CN=Training' -days 3650 2>/dev/null"
      "; openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout worker.key "
      "-out worker.csr -subj '/CN=worker' 2>/dev/null"
      "; printf 'subjectAltName=URI:waybill://j/worker/a\\nextendedKeyUsage=clientAuth\\n' > "
      "worker.ext"
      "; openssl x509 -req -in worker.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 "
      "-extfile worker.ext -out worker.pem 2>/dev/null"
      "; cat worker.key worker.pem ca.pem > key.pem");
  ASSERT_EQ(system(script.c_str()), 0);
  const absl::StatusOr<Identity> identity = IdentityOf("@" + folder + "/key.pem", absl::Now());
  ASSERT_TRUE(identity.ok()) << identity.status();
  const CertificateInfo info = Describe(identity->certificates, identity->authorities).value();
  EXPECT_EQ(info.rights, kWorkerOfA);
  EXPECT_EQ(info.issuer, "CN=Training,O=Ours");
}

}  // namespace
}  // namespace waybill
