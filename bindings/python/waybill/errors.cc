// Errors of the C ABI become exceptions that waybill.errors defines.
#include <exception>

#include "bindings/python/waybill/extension.h"

namespace waybill::python {

py::object ToException(waybill_status_t code, uint32_t scope, const std::string& message) {
  // Imported here: an import at the top would be a cycle.
  return py::module_::import("waybill.errors").attr("from_status")(code, scope, message);
}

void AddErrors(py::module_& module) {
  module.def("status_name", &waybill_status_name, py::arg("status"));
  py::register_exception_translator(
      [](std::exception_ptr thrown) {  // NOLINT(performance-unnecessary-value-param)
        try {
          if (thrown) std::rethrow_exception(thrown);
        } catch (const Error& error) {
          const py::object exception = ToException(error.code(), error.scope(), error.what());
          PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
        }
      });
}

}  // namespace waybill::python
