// SPDX-License-Identifier: Apache-2.0

// Several addresses in one: what each member fabric gave, under its name. Printable where they are.
#ifndef WAYBILL_CORE_FABRIC_CHOICE_TAGGED_TEXTS_H_
#define WAYBILL_CORE_FABRIC_CHOICE_TAGGED_TEXTS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace waybill::choice {

using TaggedTexts = std::vector<std::pair<std::string, std::string>>;  // Tag, text.

// "tag:length:text", one behind the other.
std::string Join(const TaggedTexts& texts);
// kInvalidArgument: was not joined so.
absl::StatusOr<TaggedTexts> Split(absl::string_view joined);

}  // namespace waybill::choice

#endif  // WAYBILL_CORE_FABRIC_CHOICE_TAGGED_TEXTS_H_
