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
  const py::gil_scoped_release unlocked;
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

void AddController(py::module_& module) {
  module.def("query", &Query, py::arg("context"), py::arg("address"), py::arg("token"),
             py::arg("deadline_ns"), Unlocked());
  module.def("job_tensors", &JobTensors, py::arg("context"), py::arg("address"), py::arg("token"),
             py::arg("deadline_ns"), Unlocked());
  py::class_<KeptController>(module, "Controller")
      .def(py::init(&Start), py::arg("context"), py::arg("listen"), py::arg("job"),
           py::arg("token"), py::arg("state"), py::arg("required_groups"),
           py::arg("join_timeout_ns"))
      .def(
          "address",
          [](const KeptController& self) { return Bytes(waybill_controller_address, self.get()); },
          Unlocked())
      .def(
          "status",
          [](const KeptController& self) { return Bytes(waybill_controller_status, self.get()); },
          Unlocked())
      .def("close", &KeptController::Close);
}

}  // namespace waybill::python
