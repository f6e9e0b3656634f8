// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/selection.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/sha256.h"

namespace waybill {

absl::Status Selection::Check() const {
  if (at_most_ppm > 0 && at_most_ppm <= kMillion) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("at_most is ", at_most_ppm,
                                                 " of a million elements; it is at least 1, and at "
                                                 "most ",
                                                 kMillion));
}

std::vector<bool> Selection::SelectIn(const Manifest& manifest,
                                      std::vector<std::string>* unknown) const {
  std::vector<bool> selected(manifest.tensor_count(), tensors.empty());
  std::set<std::string> names, patterns, found;
  for (const std::string& tensor : tensors) {
    (tensor.find_first_of("*?[") == std::string::npos ? names : patterns).insert(tensor);
  }
  const auto take = [&](const std::string& asked, uint32_t tensor) {
    found.insert(asked);
    selected[tensor] = true;
  };
  const auto look = [&](absl::string_view of_tensor, uint32_t tensor) {
    const std::string name(of_tensor);
    if (names.contains(name)) take(name, tensor);
    for (const std::string& pattern : patterns) {
      if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) take(pattern, tensor);
    }
  };
  if (tensors.empty()) return selected;
  for (uint32_t t = 0; t < manifest.tensor_count(); ++t) look(manifest.tensor_name(t), t);
  for (uint32_t a = 0; a < manifest.alias_count(); ++a) {
    look(manifest.alias_name(a), manifest.alias_tensor(a));
  }
  for (const std::string& tensor : tensors) {
    if (unknown != nullptr && !found.contains(tensor)) unknown->push_back(tensor);
  }
  return selected;
}

uint64_t Selection::Compose(uint64_t version_before, uint64_t composition_before) const {
  const std::string digest =
      Sha256(absl::StrCat(at_most_ppm, " ", version_before, " ", composition_before, "\n",
                          absl::StrJoin(tensors, "\n")));
  uint64_t composition = 0;
  std::memcpy(&composition, digest.data(), sizeof(composition));
  return std::max<uint64_t>(composition, 1);
}

}  // namespace waybill
