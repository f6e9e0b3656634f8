// SPDX-License-Identifier: Apache-2.0

#include "core/control/revoked_keys.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"

namespace waybill {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(2);

absl::StatusOr<std::set<std::string>> SerialsIn(const std::string& path) {
  std::ifstream file(path);
  std::set<std::string> serials;
  std::string line;
  while (std::getline(file, line)) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty() || text[0] == '#') continue;
    std::string serial = absl::AsciiStrToUpper(text.substr(0, text.find_first_of(" \t")));
    const bool digits = std::all_of(serial.begin(), serial.end(),
                                    [](unsigned char c) { return absl::ascii_isxdigit(c); });
    if (!digits) {
      return absl::InvalidArgumentError(
          absl::StrCat("revoked keys: ", path, ": \"", serial,
                       "\" is no serial; `waybill keys show` prints a key's"));
    }
    serials.insert(std::move(serial));
  }
  if (file.eof()) return serials;
  return absl::InvalidArgumentError(
      absl::StrCat("revoked keys: ", path, " cannot be read: ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<RevokedKeys> RevokedKeys::Read(const std::string& path, absl::Time now) {
  RevokedKeys keys(path);
  if (path.empty()) return keys;
  WAYBILL_ASSIGN_OR_RETURN(keys.serials_, SerialsIn(path));
  keys.next_ = now + kPeriod;
  return keys;
}

absl::Status RevokedKeys::Check(const CertificateInfo& key) const {
  if (!serials_.contains(key.serial)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the key is that of ", ToString(key.rights),
                                                  ", and is revoked (serial ", key.serial, ")"));
}

bool RevokedKeys::OnTime(absl::Time now) {
  if (now < next_) return false;
  next_ = now + kPeriod;
  absl::StatusOr<std::set<std::string>> serials = SerialsIn(path_);
  if (!serials.ok() || *serials == serials_) return false;
  serials_ = *std::move(serials);
  return true;
}

}  // namespace waybill
