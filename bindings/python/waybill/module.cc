// SPDX-License-Identifier: Apache-2.0

// The extension module waybill._waybill: the C ABI, in Python's types. It is not for users: the
// modules beside it are.
#include "bindings/python/waybill/extension.h"

WAYBILL_ABI3_MODULE(_waybill, "waybill._waybill", module) {
  module.Function<"version", &waybill_version>(
      "The version of the library that is loaded: \"MAJOR.MINOR.PATCH\".");
  module.Function<"now_ns", &waybill_now_ns>();
  module.Function<"dtype_size", &waybill_dtype_size, "dtype">();
  module.Function<"dtype_name", &waybill_dtype_name, "dtype">();
  waybill::python::AddErrors(module);
  waybill::python::AddContext(module);
  waybill::python::AddOptions(module);
  waybill::python::AddQueue(module);
  waybill::python::AddMemory(module);
  waybill::python::AddManifest(module);
  waybill::python::AddPlanning(module);
  waybill::python::AddController(module);
  waybill::python::AddRanks(module);
}
