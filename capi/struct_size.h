// SPDX-License-Identifier: Apache-2.0

// Structs whose first member is their size: older and newer callers have shorter and longer ones.
#ifndef WAYBILL_CAPI_STRUCT_SIZE_H_
#define WAYBILL_CAPI_STRUCT_SIZE_H_

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "capi/first_sizes.h"
#include "capi/waybill.h"
#include "core/base/status.h"

namespace waybill::capi {

// No struct will ever be this long. A larger size was never set.
inline constexpr size_t kLongestStruct = 4096;

// The same for every struct: its sizes and its alignment are arguments.
absl::Status CheckSize(const size_t* struct_size, size_t first_size, size_t alignment,
                       absl::string_view name);
absl::Status ReadBytes(const void* given, size_t struct_size, absl::string_view name, void* read,
                       size_t known_size);

template <typename T>
absl::Status CheckStructSize(const T* given, absl::string_view name) {
  static_assert(kFirstSize<T> != 0 && kFirstSize<T> <= sizeof(T));
  return CheckSize(given == nullptr ? nullptr : &given->struct_size, kFirstSize<T>, alignof(T),
                   name);
}

// Returns the struct that the caller filled in. Fields that the caller's version lacks are zero.
//
// kUnimplemented: a field that this library does not know is not zero.
template <typename T>
absl::StatusOr<T> ReadStruct(const T* given, absl::string_view name) {
  WAYBILL_RETURN_IF_ERROR(CheckStructSize(given, name));
  T read{};
  WAYBILL_RETURN_IF_ERROR(ReadBytes(given, given->struct_size, name, &read, sizeof(T)));
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
