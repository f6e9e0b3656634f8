// SPDX-License-Identifier: Apache-2.0

// Tells which characters of a text can be shown to people.
#ifndef WAYBILL_CORE_BASE_PLAIN_TEXT_H_
#define WAYBILL_CORE_BASE_PLAIN_TEXT_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace waybill {

// Removes the first character of a text that is not empty, and returns it. nullopt: the text does
// not begin with UTF-8; nothing is removed.
std::optional<uint32_t> TakeCharacter(absl::string_view& text);

// Returns true if a terminal shows the character as itself: it is no control character (C0, DEL,
// C1), separates no lines, and does not change the direction of others.
bool IsPlain(uint32_t character);

bool IsUtf8(absl::string_view text);
// Returns true for UTF-8 of plain characters only.
bool IsPlainText(absl::string_view text);

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_PLAIN_TEXT_H_
