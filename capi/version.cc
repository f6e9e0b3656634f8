// SPDX-License-Identifier: Apache-2.0

#include "core/base/version.h"

#include <time.h>

#include <string>

#include "absl/status/status.h"
#include "capi/waybill.h"
#include "core/tensor/dtype.h"

const char* waybill_version(void) { return waybill::kVersion; }

uint32_t waybill_abi_version(void) { return WAYBILL_ABI_MAJOR << 16 | WAYBILL_ABI_MINOR; }

const char* waybill_status_name(waybill_status_t status) {
  static const std::string* const kNames = [] {
    auto* names = new std::string[WAYBILL_UNAUTHENTICATED + 1];
    for (int i = 0; i <= WAYBILL_UNAUTHENTICATED; ++i) {
      names[i] = absl::StatusCodeToString(static_cast<absl::StatusCode>(i));
    }
    return names;
  }();
  return kNames[status >= 0 && status <= WAYBILL_UNAUTHENTICATED ? status : WAYBILL_UNKNOWN]
      .c_str();
}

int64_t waybill_now_ns(void) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

uint32_t waybill_dtype_size(uint32_t dtype) {
  const auto found = waybill::DtypeFromNumber(dtype);
  return found.ok() ? waybill::SizeBytes(*found) : 0;
}

const char* waybill_dtype_name(uint32_t dtype) {
  const auto found = waybill::DtypeFromNumber(dtype);
  return found.ok() ? waybill::Name(*found).data() : "";
}
