// SPDX-License-Identifier: Apache-2.0

#include "core/control/decision_text.h"

#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/digest.h"

namespace waybill {
namespace {

uint64_t Checksum(absl::string_view text) { return kernels::Digest(text.data(), text.size()); }

}  // namespace

// A group's name has no control characters.
std::string EncodeDecision(const Decision& decision) {
  const std::string text = absl::StrCat(decision.epoch, " ", decision.sequence, " ",
                                        decision.version, " ", decision.group);
  return absl::StrFormat("%016x %s\n", Checksum(text), text);
}

std::optional<Decision> DecodeDecision(absl::string_view line) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(line, absl::MaxSplits(' ', 1));
  uint64_t checksum = 0;
  if (!absl::SimpleHexAtoi(parts.first, &checksum) || checksum != Checksum(parts.second)) {
    return std::nullopt;
  }
  const std::vector<std::string> words = absl::StrSplit(parts.second, absl::MaxSplits(' ', 3));
  Decision decision;
  if (words.size() != 4 || !absl::SimpleAtoi(words[0], &decision.epoch) ||
      !absl::SimpleAtoi(words[1], &decision.sequence) ||
      !absl::SimpleAtoi(words[2], &decision.version)) {
    return std::nullopt;
  }
  decision.group = words[3];
  return decision;
}

std::vector<Decision> KeepLast(const std::vector<Decision>& all) {
  std::map<std::string, size_t> left;
  for (const Decision& decision : all) ++left[decision.group];
  std::vector<Decision> kept;
  for (const Decision& decision : all) {
    if (left[decision.group]-- <= kDecisionsKept) kept.push_back(decision);
  }
  return kept;
}

}  // namespace waybill
