// What the shim's functions are made of.
#ifndef WAYBILL_BINDINGS_RUST_SRC_SHIM_CALLS_H_
#define WAYBILL_BINDINGS_RUST_SRC_SHIM_CALLS_H_

#include <algorithm>
#include <string>
#include <vector>
#include <waybill/waybill.hpp>

#include "waybill/src/ffi.rs.h"

namespace waybill::rust_shim {

// A handle's number, as whatever handle is asked for.
struct At {
  uint64_t number;
  template <typename Handle>
  operator Handle*() const {
    return reinterpret_cast<Handle*>(number);
  }
};

// Calls a function with all its arguments but the error.
template <typename... Call>
Status Try(const Call&... call) {
  const Outcome outcome = waybill::Try(call...);
  if (outcome.status == WAYBILL_OK) return {0, 0, {}};
  return {outcome.status, waybill_error_scope(outcome.error.get()),
          rust::String::lossy(waybill_error_message(outcome.error.get()))};
}

// The same of one that makes an object, whose number is written.
template <typename Handle, typename... Call>
Status Make(uint64_t& out, const Call&... call) {
  Handle* made = nullptr;
  Status status = Try(call..., &made);
  if (status.code == WAYBILL_OK) out = reinterpret_cast<uint64_t>(made);
  return status;
}

// The same of one that makes text.
template <typename... Call>
Status Say(rust::String& out, const Call&... call) {
  waybill_blob_t* made = nullptr;
  Status status = Try(call..., &made);
  const Blob blob(made);
  if (status.code != WAYBILL_OK) return status;
  out = rust::String::lossy(static_cast<const char*>(waybill_blob_data(made)),
                            waybill_blob_size(made));
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
  for (const uint64_t number : numbers) handles.push_back(At{number});
  return handles;
}

}  // namespace waybill::rust_shim

#endif  // WAYBILL_BINDINGS_RUST_SRC_SHIM_CALLS_H_
