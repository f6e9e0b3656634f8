// SPDX-License-Identifier: Apache-2.0

// Bits that nobody can guess: keys and secrets.
#ifndef WAYBILL_CORE_BASE_RANDOM_BITS_H_
#define WAYBILL_CORE_BASE_RANDOM_BITS_H_

#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace waybill {

inline absl::StatusOr<uint64_t> RandomBits() {
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof(bits), 0) == sizeof(bits)) return bits;
  return absl::InternalError(
      absl::StrCat("getrandom: ", std::strerror(errno), " (errno ", errno, ")"));
}

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_RANDOM_BITS_H_
