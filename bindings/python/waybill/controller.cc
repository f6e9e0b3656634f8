// SPDX-License-Identifier: Apache-2.0

// A controller that this process hosts, and questions to one anywhere.
#include "bindings/python/waybill/extension.h"

namespace waybill::python {
namespace {

using KeptController = Kept<Controller>;

std::unique_ptr<KeptController> Start(const KeptContext& context,
                                      const Options<waybill_controller_options_t>& options) {
  const abi3::Unlocked unlocked;
  return std::make_unique<KeptController>(
      Make<Controller>(waybill_controller_start, context.get(), &options.c));
}

std::string JobTensors(const KeptContext& context, const std::string& address,
                       const std::string& token, int64_t deadline_ns) {
  return Bytes(waybill_job_tensors, context.get(), address.c_str(), token.c_str(), deadline_ns);
}

std::string Query(const KeptContext& context, const std::string& address, const std::string& token,
                  int64_t deadline_ns) {
  return Bytes(waybill_controller_query, context.get(), address.c_str(), token.c_str(),
               deadline_ns);
}

}  // namespace

void AddController(abi3::Module& module) {
  module.FunctionUnlocked<"query", &Query, "context", "address", "token", "deadline_ns">();
  module
      .FunctionUnlocked<"job_tensors", &JobTensors, "context", "address", "token", "deadline_ns">();
  abi3::Class<KeptController>(module, "Controller")
      .Init<&Start, "context", "options">()
      .MethodUnlocked<"address",
                      [](const KeptController& self) {
                        return Bytes(waybill_controller_address, self.get());
                      }>()
      .MethodUnlocked<"status",
                      [](const KeptController& self) {
                        return Bytes(waybill_controller_status, self.get());
                      }>()
      .Method<"close", &KeptController::Close>();
}

}  // namespace waybill::python
