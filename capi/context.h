// What the objects of one user share.
#ifndef WAYBILL_CAPI_CONTEXT_H_
#define WAYBILL_CAPI_CONTEXT_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "capi/object.h"
#include "capi/waybill.h"

namespace waybill::capi {

class Context : public Object {
 public:
  using Handle = waybill_context_t;
  static constexpr Kind kKind = Kind::kContext;

  Context(waybill_log_sink_t sink, void* user) : sink_(sink), user_(user) {}

  void Log(absl::string_view line) const {
    constexpr uint32_t kInformation = 1;
    if (sink_ != nullptr) sink_(user_, kInformation, std::string(line).c_str());
  }

 private:
  const waybill_log_sink_t sink_;
  void* const user_;
};

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_CONTEXT_H_
