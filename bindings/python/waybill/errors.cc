// SPDX-License-Identifier: Apache-2.0

// Errors of the C ABI become exceptions that waybill.errors defines.
#include "bindings/python/waybill/extension.h"

namespace waybill::python {

abi3::Object ToException(waybill_status_t code, uint32_t scope, const std::string& message) {
  // Imported here: an import at the top would be a cycle.
  return abi3::Object::Import("waybill.errors")
      .Attribute("from_status")(abi3::ToPython(code), abi3::ToPython(scope),
                                abi3::ToPython(message));
}

namespace {

bool Translate() {
  try {
    throw;
  } catch (const Error& error) {
    const abi3::Object exception = ToException(error.code(), error.scope(), error.what());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())), exception.get());
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

void AddErrors(abi3::Module& module) {
  module.Function<"status_name", &waybill_status_name, "status">();
  abi3::g_translate = &Translate;
}

}  // namespace waybill::python
