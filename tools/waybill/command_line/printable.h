// SPDX-License-Identifier: Apache-2.0

// Texts of other processes, made safe for a terminal.
#ifndef WAYBILL_TOOLS_WAYBILL_COMMAND_LINE_PRINTABLE_H_
#define WAYBILL_TOOLS_WAYBILL_COMMAND_LINE_PRINTABLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace waybill {

// Returns the text with everything escaped, as \x1b or \u202e, that is neither plain
// (core/base/plain_text.h) nor a newline.
std::string Printable(absl::string_view text);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_COMMAND_LINE_PRINTABLE_H_
