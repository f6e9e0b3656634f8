// SPDX-License-Identifier: Apache-2.0

#include "core/change/chunk_encoding.h"

#include "absl/strings/str_cat.h"

namespace waybill {

absl::Status CheckChunk(size_t size_bytes, size_t before_bytes, ElementWidth width) {
  if (size_bytes != before_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a chunk of ", size_bytes, " bytes has ",
                                                   before_bytes, " bytes in the version before"));
  }
  const size_t element_bytes = static_cast<size_t>(width);
  if (size_bytes > kMostChunkBytes || size_bytes % element_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a chunk has ", size_bytes, " bytes; at most ",
                                                   kMostChunkBytes, " and a multiple of ",
                                                   element_bytes, " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace waybill
