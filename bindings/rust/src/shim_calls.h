// What the shim's functions are made of.
#ifndef WAYBILL_BINDINGS_RUST_SRC_SHIM_CALLS_H_
#define WAYBILL_BINDINGS_RUST_SRC_SHIM_CALLS_H_

#include <waybill/waybill.h>

#include <algorithm>
#include <string>
#include <vector>

#include "waybill/src/ffi.rs.h"

namespace waybill::rust_shim {

template <typename Handle>
Handle* From(uint64_t number) {
  return reinterpret_cast<Handle*>(number);
}

// Runs `call`, which takes where an error goes.
template <typename Call>
Status Try(const Call& call) {
  waybill_error_t* error = nullptr;
  const waybill_status_t status = call(&error);
  if (status == WAYBILL_OK) return {0, 0, {}};
  Status result{status, waybill_error_scope(error),
                rust::String::lossy(waybill_error_message(error))};
  waybill_error_destroy(error);
  return result;
}

// The same of one that makes an object, whose number is written.
template <typename Handle, typename Call>
Status Make(uint64_t& out, const Call& call) {
  Handle* made = nullptr;
  Status status = Try([&](waybill_error_t** e) { return call(&made, e); });
  if (status.code == WAYBILL_OK) out = reinterpret_cast<uint64_t>(made);
  return status;
}

template <typename Call>
Status Say(rust::String& out, const Call& call) {
  waybill_blob_t* blob = nullptr;
  Status status = Try([&](waybill_error_t** e) { return call(&blob, e); });
  if (status.code != WAYBILL_OK) return status;
  const auto* text = static_cast<const char*>(waybill_blob_data(blob));
  out = rust::String::lossy(text, waybill_blob_size(blob));
  waybill_blob_destroy(blob);
  return status;
}

// C would end a text at a zero within: a byte that is not UTF-8 makes the library refuse it
// instead.
inline std::string Text(rust::Str text) {
  std::string result(text);
  std::replace(result.begin(), result.end(), '\0', '\xff');
  return result;
}

template <typename Handle>
std::vector<Handle*> Handles(rust::Slice<const uint64_t> numbers) {
  std::vector<Handle*> handles;
  for (const uint64_t number : numbers) handles.push_back(From<Handle>(number));
  return handles;
}

}  // namespace waybill::rust_shim

#endif  // WAYBILL_BINDINGS_RUST_SRC_SHIM_CALLS_H_
