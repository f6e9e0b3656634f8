// SPDX-License-Identifier: Apache-2.0

// Structs whose first member is their size: older and newer callers have shorter and longer ones.
#ifndef WAYBILL_CAPI_STRUCT_SIZE_H_
#define WAYBILL_CAPI_STRUCT_SIZE_H_

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "capi/first_sizes.h"
#include "capi/waybill.h"
#include "core/base/status.h"

namespace waybill::capi {

// No struct will ever be this long. A larger size was never set.
inline constexpr size_t kLongestStruct = 4096;

template <typename T>
absl::Status CheckStructSize(const T* given, absl::string_view name) {
  static_assert(kFirstSize<T> != 0 && kFirstSize<T> <= sizeof(T));
  if (given == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
  const size_t size = given->struct_size;
  if (size >= kFirstSize<T> && size <= kLongestStruct && size % alignof(T) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(name, ": struct_size is ", size,
                                                 ", not the struct's size, which is at least ",
                                                 kFirstSize<T>, " (use the _INIT macro)"));
}

// Returns the struct that the caller filled in. Fields that the caller's version lacks are zero.
//
// kUnimplemented: a field that this library does not know is not zero.
template <typename T>
absl::StatusOr<T> ReadStruct(const T* given, absl::string_view name) {
  WAYBILL_RETURN_IF_ERROR(CheckStructSize(given, name));
  T read{};
  std::memcpy(&read, given, std::min(sizeof(T), given->struct_size));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); i < given->struct_size; ++i) {
    if (bytes[i] == 0) continue;
    return absl::UnimplementedError(absl::StrCat(name, ": byte ", i, " is set, and this library (",
                                                 waybill_version(), ") knows ", sizeof(T),
                                                 " bytes: it is older than the caller"));
  }
  return read;
}

// Fills in the fields that the caller's version has. The struct must have passed CheckStructSize().
template <typename T>
void WriteStruct(T value, T* out) {
  const size_t size = out->struct_size;
  std::memset(static_cast<void*>(out), 0, size);
  std::memcpy(static_cast<void*>(out), &value, std::min(sizeof(T), size));
  out->struct_size = size;
}

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_STRUCT_SIZE_H_
