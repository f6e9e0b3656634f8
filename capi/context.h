// SPDX-License-Identifier: Apache-2.0

// The context: what the objects of one user share.
#ifndef WAYBILL_CAPI_CONTEXT_H_
#define WAYBILL_CAPI_CONTEXT_H_

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "capi/object.h"
#include "capi/waybill.h"

namespace waybill::capi {

enum class LogLevel : uint32_t { kInformation = 1, kWarning = 2 };

class Context : public Object {
 public:
  using Handle = waybill_context_t;
  static constexpr Kind kKind = Kind::kContext;

  Context(waybill_log_sink_t sink, void* user) : sink_(sink), user_(user) {}

  void Log(LogLevel level, absl::string_view line) const {
    const std::string text(line);
    if (sink_ != nullptr) {
      sink_(user_, static_cast<uint32_t>(level), text.c_str());
    } else if (level == LogLevel::kWarning) {
      std::fprintf(stderr, "waybill: %s\n", text.c_str());
    }
  }

 private:
  const waybill_log_sink_t sink_;
  void* const user_;
};

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_CONTEXT_H_
