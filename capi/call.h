// SPDX-License-Identifier: Apache-2.0

// Wraps every function of the C ABI: catches exceptions, and reports errors to the caller.
#ifndef WAYBILL_CAPI_CALL_H_
#define WAYBILL_CAPI_CALL_H_

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "capi/handle_table.h"
#include "capi/waybill.h"
#include "core/base/status.h"

namespace waybill::capi {

class Error : public Object {
 public:
  using Handle = waybill_error_t;
  static constexpr Kind kKind = Kind::kError;

  explicit Error(absl::Status status)
      : status_(std::move(status)), message_(Shortened(std::string(status_.message()))) {}

  const absl::Status& status() const { return status_; }
  const char* message() const { return message_.c_str(); }

 private:
  static std::string Shortened(std::string message) {
    constexpr size_t kMostBytes = 8192;  // Names of the caller's can be of any length.
    if (message.size() <= kMostBytes) return message;
    const size_t left_out = message.size() - kMostBytes;
    size_t end = kMostBytes;
    while ((message[end] & 0xC0) == 0x80) --end;  // Within a character of UTF-8.
    return absl::StrCat(message.substr(0, end), "... (", left_out, " more bytes)");
  }

  const absl::Status status_;
  const std::string message_;
};

class Blob : public Object {
 public:
  using Handle = waybill_blob_t;
  static constexpr Kind kKind = Kind::kBlob;

  explicit Blob(std::string bytes) : bytes_(std::move(bytes)) {}
  const std::string& bytes() const { return bytes_; }

 private:
  const std::string bytes_;
};

// Returns the status as a number. If it is not OK and `error` is not null, also makes an error
// object.
waybill_status_t Report(absl::Status status, waybill_error_t** error) noexcept;

// Runs `body`, which returns an absl::Status, unless this process was forked. Errors begin with
// `doing`. Throws nothing.
template <typename Body>
waybill_status_t Call(absl::string_view doing, waybill_error_t** error, const Body& body) noexcept {
  if (error != nullptr) *error = nullptr;
  try {
    if (HandleTable::forked()) {
      return Report(absl::FailedPreconditionError(absl::StrCat(
                        doing,
                        ": this process was forked from the one that uses Waybill; start "
                        "it by exec, or fork before the first call")),
                    error);
    }
    absl::Status status = body();
    if (status.ok()) return WAYBILL_OK;
    return Report(While(doing, std::move(status)), error);
  } catch (const std::bad_alloc&) {
    return Report(absl::ResourceExhaustedError("out of memory"), error);
  } catch (const std::exception& thrown) {
    return Report(absl::InternalError(thrown.what()), error);
  }
}

template <typename T>
absl::Status CheckOutput(const T* output, absl::string_view name) {
  return output != nullptr ? absl::OkStatus()
                           : absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
}

// Returns the object behind a handle. kInvalidArgument: the handle names no object; the error names
// the argument.
template <typename T>
absl::StatusOr<std::shared_ptr<T>> Find(const typename T::Handle* handle, absl::string_view name) {
  std::shared_ptr<T> object = FindObject<T>(handle);
  if (object != nullptr) return object;
  return absl::InvalidArgumentError(absl::StrCat(
      name, handle == nullptr ? " is NULL"
                              : " is no such handle: it was destroyed, or is of another kind"));
}

// As Call(), for a function that needs one object, which `run` gets.
template <typename T, typename Run>
waybill_status_t CallOn(absl::string_view doing, const typename T::Handle* handle,
                        absl::string_view name, waybill_error_t** error, const Run& run) noexcept {
  return Call(doing, error, [&]() -> absl::Status {
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<T>(handle, name));
    return run(*found);
  });
}

// Returns a text argument; NULL is "". kInvalidArgument: it is not UTF-8.
absl::StatusOr<std::string> Text(const char* text, absl::string_view name);

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_CALL_H_
