// SPDX-License-Identifier: Apache-2.0

// A controller that this process hosts, and questions to one anywhere.
#include "bindings/python/waybill/extension.h"

namespace waybill::python {
namespace {

using KeptController = Kept<Controller>;

std::unique_ptr<KeptController> Start(const KeptContext& context, const std::string& listen,
                                      const std::string& job, const std::string& token,
                                      const std::string& state, const std::string& required_groups,
                                      int64_t join_timeout_ns) {
  waybill_controller_options_t options = WAYBILL_CONTROLLER_OPTIONS_INIT;
  options.listen = listen.c_str();
  options.job = job.c_str();
  options.token = token.c_str();
  options.state = state.c_str();
  options.required_groups = required_groups.c_str();
  options.join_timeout_ns = join_timeout_ns;
  const abi3::Unlocked unlocked;
  return std::make_unique<KeptController>(
      Make<Controller>(waybill_controller_start, context.get(), &options));
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
      .Init<&Start, "context", "listen", "job", "token", "state", "required_groups",
            "join_timeout_ns">()
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
