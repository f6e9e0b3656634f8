// SPDX-License-Identifier: Apache-2.0

// Compresses bytes with zlib.
#ifndef WAYBILL_CORE_BASE_DEFLATE_H_
#define WAYBILL_CORE_BASE_DEFLATE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace waybill {

// Returns `bytes` compressed, behind their size. The same bytes give the same result with the same
// version of zlib.
std::string Deflate(absl::string_view bytes);

// Returns the bytes that Deflate() was given.
//
// kInvalidArgument: `compressed` is not a result of Deflate(), or holds more than `most_bytes`.
absl::StatusOr<std::string> Inflate(absl::string_view compressed, size_t most_bytes);

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_DEFLATE_H_
