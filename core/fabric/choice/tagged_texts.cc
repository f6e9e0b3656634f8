// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/choice/tagged_texts.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace waybill::choice {

std::string Join(const TaggedTexts& texts) {
  std::string joined;
  for (const auto& [tag, text] : texts) absl::StrAppend(&joined, tag, ":", text.size(), ":", text);
  return joined;
}

absl::StatusOr<TaggedTexts> Split(absl::string_view joined) {
  TaggedTexts texts;
  for (absl::string_view rest = joined; !rest.empty();) {
    const size_t tag_end = rest.find(':');
    const size_t length_end =
        tag_end == absl::string_view::npos ? tag_end : rest.find(':', tag_end + 1);
    uint64_t length = 0;
    if (length_end == absl::string_view::npos ||
        !absl::SimpleAtoi(rest.substr(tag_end + 1, length_end - tag_end - 1), &length) ||
        length > rest.size() - length_end - 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", joined.substr(0, 100), "\" does not name fabrics"));
    }
    texts.emplace_back(rest.substr(0, tag_end), rest.substr(length_end + 1, length));
    rest.remove_prefix(length_end + 1 + length);
  }
  return texts;
}

}  // namespace waybill::choice
