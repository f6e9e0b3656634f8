// SPDX-License-Identifier: Apache-2.0

#include "capi/struct_size.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace waybill::capi {

absl::Status CheckSize(const size_t* struct_size, size_t first_size, size_t alignment,
                       absl::string_view name) {
  if (struct_size == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
  const size_t size = *struct_size;
  if (size >= first_size && size <= kLongestStruct && size % alignment == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(name, ": struct_size is ", size,
                                                 ", not the struct's size, which is at least ",
                                                 first_size, " (use the _INIT macro)"));
}

absl::Status ReadBytes(const void* given, size_t struct_size, absl::string_view name, void* read,
                       size_t known_size) {
  std::memcpy(read, given, std::min(known_size, struct_size));
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (size_t i = known_size; i < struct_size; ++i) {
    if (bytes[i] == 0) continue;
    return absl::UnimplementedError(absl::StrCat(name, ": byte ", i, " is set, and this library (",
                                                 waybill_version(), ") knows ", known_size,
                                                 " bytes: it is older than the caller"));
  }
  return absl::OkStatus();
}

}  // namespace waybill::capi
