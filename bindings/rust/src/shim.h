// The C ABI, in the shapes that the cxx bridge of lib.rs takes.
#ifndef WAYBILL_BINDINGS_RUST_SRC_SHIM_H_
#define WAYBILL_BINDINGS_RUST_SRC_SHIM_H_

#include <waybill/waybill.h>

#include "rust/cxx.h"

namespace waybill::rust_shim {

inline rust::Str version() { return waybill_version(); }

}  // namespace waybill::rust_shim

#endif  // WAYBILL_BINDINGS_RUST_SRC_SHIM_H_
