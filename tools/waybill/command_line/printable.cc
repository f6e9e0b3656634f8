// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/command_line/printable.h"

#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/plain_text.h"

namespace waybill {

std::string Printable(absl::string_view text) {
  std::string printable;
  while (!text.empty()) {
    const absl::string_view before = text;
    const std::optional<uint32_t> character = TakeCharacter(text);
    if (!character) {
      absl::StrAppendFormat(&printable, "\\x%02x", static_cast<uint8_t>(before[0]));
      text.remove_prefix(1);
    } else if (IsPlain(*character) || *character == '\n') {
      absl::StrAppend(&printable, before.substr(0, before.size() - text.size()));
    } else if (*character < 0x80) {
      absl::StrAppendFormat(&printable, "\\x%02x", *character);
    } else {
      absl::StrAppendFormat(&printable, "\\u%04x", *character);
    }
  }
  return printable;
}

}  // namespace waybill
