// SPDX-License-Identifier: Apache-2.0

// The place of an operation in a distributed trace, by W3C Trace Context.
#ifndef WAYBILL_CORE_BASE_TRACE_PARENT_H_
#define WAYBILL_CORE_BASE_TRACE_PARENT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace waybill {

struct TraceParent {
  std::string trace_id;  // 16 bytes, not all zero.
  std::string span_id;   // 8 bytes, not all zero: the span that becomes the parent.
  bool sampled = false;  // Whoever began the trace records it.
};

// Reads the value of a `traceparent` header, as section 3.2 of https://www.w3.org/TR/trace-context/
// defines it:
//
//     00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//
// A later version of the format may only append fields. kInvalidArgument: it is none.
absl::StatusOr<TraceParent> ParseTraceParent(absl::string_view text);

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_TRACE_PARENT_H_
