// SPDX-License-Identifier: Apache-2.0

// The keys that a controller serves no more, from a file that it watches.
#ifndef WAYBILL_CORE_CONTROL_REVOKED_KEYS_H_
#define WAYBILL_CORE_CONTROL_REVOKED_KEYS_H_

#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/control/identity.h"

namespace waybill {

// A line of the file begins with the serial of a key, as `waybill keys show` prints it; what
// follows after a space, and lines that begin with "#", are notes. Not thread-safe.
class RevokedKeys {
 public:
  // An empty path stands for no file. kInvalidArgument: the file cannot be read, or a line has no
  // serial.
  static absl::StatusOr<RevokedKeys> Read(const std::string& path, absl::Time now);

  // kPermissionDenied: the key is revoked.
  absl::Status Check(const CertificateInfo& key) const;

  // Reads the file again every few seconds. Returns true if it has changed. What was revoked stays
  // so while the file cannot be read.
  bool OnTime(absl::Time now);
  absl::Time next_deadline() const { return next_; }

 private:
  explicit RevokedKeys(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::set<std::string> serials_;
  absl::Time next_ = absl::InfiniteFuture();
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_REVOKED_KEYS_H_
