// SPDX-License-Identifier: Apache-2.0

// What absl::Status lacks: what was being done when an error came up, and how much is dead because
// of it.
#ifndef WAYBILL_CORE_BASE_STATUS_H_
#define WAYBILL_CORE_BASE_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace waybill {

// How far an error reaches. The wider scope wins when several are told of one error.
enum class Scope : unsigned char {
  kCall = 1,    // This call failed; everything else goes on.
  kUpdate = 2,  // This version will not be shown; the next may be.
  kPeer = 3,    // One peer is gone; its lanes are to be rebuilt in another term.
};

absl::string_view Name(Scope scope);

// `status` with its scope recorded; an OK status is returned as it is.
absl::Status WithScope(absl::Status status, Scope scope);

// kCall where none was recorded.
Scope ScopeOf(const absl::Status& status);

// "<doing>: <message>", with code and payloads kept. Each layer adds what it was doing, once.
absl::Status While(absl::string_view doing, absl::Status status);

// The status of what failed first, or OK: `first` unless it is OK, else `second`.
absl::Status FirstError(absl::Status first, absl::Status second);

}  // namespace waybill

#define WAYBILL_RETURN_IF_ERROR(expression)                                   \
  do {                                                                        \
    if (::absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

#define WAYBILL_STATUS_CONCAT_(a, b) a##b
#define WAYBILL_STATUS_NAME_(a, b) WAYBILL_STATUS_CONCAT_(a, b)
#define WAYBILL_ASSIGN_OR_RETURN(declaration, expression) \
  WAYBILL_ASSIGN_OR_RETURN_(WAYBILL_STATUS_NAME_(status_or_, __LINE__), declaration, expression)
#define WAYBILL_ASSIGN_OR_RETURN_(temporary, declaration, expression) \
  auto temporary = (expression);                                      \
  if (!temporary.ok()) return std::move(temporary).status();          \
  declaration = *std::move(temporary)

#endif  // WAYBILL_CORE_BASE_STATUS_H_
