// SPDX-License-Identifier: Apache-2.0

// SHA-256: names bytes where somebody may want other bytes to have the same name.
#ifndef WAYBILL_CORE_BASE_SHA256_H_
#define WAYBILL_CORE_BASE_SHA256_H_

#include <string>

#include "absl/strings/string_view.h"

namespace waybill {

// Returns the 32 bytes of the hash.
std::string Sha256(absl::string_view bytes);

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_SHA256_H_
