// The extension module waybill._waybill: the C ABI, in Python's types.

#include <pybind11/pybind11.h>

#include "capi/waybill.h"

PYBIND11_MODULE(_waybill, module) {
  module.def("version", &waybill_version, "The version of the library that is loaded: \"0.1.0\".");
}
