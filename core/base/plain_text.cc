// SPDX-License-Identifier: Apache-2.0

#include "core/base/plain_text.h"

#include <cstddef>

namespace waybill {

std::optional<uint32_t> TakeCharacter(absl::string_view& text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  const size_t more = lead < 0x80 ? 0 : lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4 || more >= text.size()) return std::nullopt;
  uint32_t character = more == 0 ? lead : lead & (0x3Fu >> more);
  for (size_t k = 1; k <= more; ++k) {
    const auto next = static_cast<uint8_t>(text[k]);
    if ((next & 0xC0) != 0x80) return std::nullopt;
    character = character << 6 | (next & 0x3F);
  }
  constexpr uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
  if (character < kSmallest[more] || character > 0x10FFFF ||
      (character >= 0xD800 && character < 0xE000)) {
    return std::nullopt;
  }
  text.remove_prefix(more + 1);
  return character;
}

bool IsPlain(uint32_t c) {
  if (c < 0x20 || (c >= 0x7F && c < 0xA0)) return false;
  if (c == 0x2028 || c == 0x2029) return false;
  return c != 0x061C && c != 0x200E && c != 0x200F && !(c >= 0x202A && c <= 0x202E) &&
         !(c >= 0x2066 && c <= 0x2069);  // Unicode's Bidi_Control.
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    if (!TakeCharacter(text)) return false;
  }
  return true;
}

bool IsPlainText(absl::string_view text) {
  while (!text.empty()) {
    const std::optional<uint32_t> character = TakeCharacter(text);
    if (!character || !IsPlain(*character)) return false;
  }
  return true;
}

}  // namespace waybill
