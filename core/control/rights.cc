// SPDX-License-Identifier: Apache-2.0

#include "core/control/rights.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/rank_id.h"
#include "core/base/status.h"

namespace waybill {
namespace {

constexpr absl::string_view kScheme = "waybill://";
constexpr std::array<std::pair<KeyRole, absl::string_view>, 6> kRoles = {{
    {KeyRole::kAuthority, "authority"},
    {KeyRole::kController, "controller"},
    {KeyRole::kTrainer, "trainer"},
    {KeyRole::kWorker, "worker"},
    {KeyRole::kObserver, "observer"},
    {KeyRole::kOperator, "operator"},
}};

std::string Encode(absl::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("-._~", c)) {
      encoded.push_back(c);
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

// Returns nullopt for an empty text, or one that Encode() does not return.
std::optional<std::string> Decode(absl::string_view encoded) {
  std::string text;
  for (size_t i = 0; i < encoded.size(); ++i) {
    if (encoded[i] != '%') {
      text.push_back(encoded[i]);
      continue;
    }
    uint8_t byte = 0;
    const absl::string_view digits = encoded.substr(i + 1, 2);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), byte, /*base=*/16);
    if (error != std::errc() || digits.size() != 2 || end != digits.data() + 2) return std::nullopt;
    text.push_back(static_cast<char>(byte));
    i += 2;
  }
  if (text.empty() || Encode(text) != encoded) return std::nullopt;
  return text;
}

std::optional<KeyRole> RoleNamed(absl::string_view name) {
  for (const auto& [role, its] : kRoles) {
    if (its == name) return role;
  }
  return std::nullopt;
}

std::optional<Rights> RightsIn(absl::string_view uri) {
  if (!absl::ConsumePrefix(&uri, kScheme)) return std::nullopt;
  const std::vector<absl::string_view> parts = absl::StrSplit(uri, '/');
  const std::optional<KeyRole> role = parts.size() < 2 ? std::nullopt : RoleNamed(parts[1]);
  if (!role || role == KeyRole::kAuthority) return std::nullopt;
  const bool worker = role == KeyRole::kWorker;
  if (parts.size() != (worker ? 3 : 2)) return std::nullopt;
  const std::optional<std::string> job = Decode(parts[0]), group = Decode(parts.back());
  if (!job || !group) return std::nullopt;
  return Rights{.role = *role, .job = *job, .group = worker ? *group : ""};
}

absl::Status Refuse(const Rights& rights, absl::string_view what, absl::string_view who) {
  return absl::PermissionDeniedError(
      absl::StrCat(what, ": the key is that of ", ToString(rights), "; use the key of ", who));
}

bool MayAsk(KeyRole role, proto::Question::KindCase kind) {
  switch (role) {
    case KeyRole::kAuthority:
    case KeyRole::kOperator:
      return true;
    case KeyRole::kTrainer:
      return kind == proto::Question::kStatus || kind == proto::Question::kTensors;
    case KeyRole::kWorker:
      return kind == proto::Question::kTensors;
    case KeyRole::kObserver:
      return kind == proto::Question::kStatus;
    case KeyRole::kController:
      return false;
  }
  return false;
}

absl::string_view Name(proto::Question::KindCase kind) {
  switch (kind) {
    case proto::Question::kStatus:
      return "ask for the status";
    case proto::Question::kTensors:
      return "ask for the job's tensors";
    case proto::Question::kRemovedGroup:
      return "remove a group";
    case proto::Question::kVerify:
      return "verify workers";
    case proto::Question::KIND_NOT_SET:
      break;
  }
  return "ask";
}

}  // namespace

absl::string_view Name(KeyRole role) {
  for (const auto& [named, name] : kRoles) {
    if (named == role) return name;
  }
  return "";
}

std::string ToString(const Rights& rights) {
  const absl::string_view name = Name(rights.role);
  const bool vowel = absl::StrContains("aeo", name[0]);
  std::string text = absl::StrCat(vowel ? "an " : "a ", name);
  if (!rights.group.empty()) absl::StrAppend(&text, " of group \"", rights.group, "\"");
  if (!rights.job.empty()) absl::StrAppend(&text, " in job \"", rights.job, "\"");
  return text;
}

std::string ToUri(const Rights& rights) {
  std::string uri = absl::StrCat(kScheme, Encode(rights.job), "/", Name(rights.role));
  if (!rights.group.empty()) absl::StrAppend(&uri, "/", Encode(rights.group));
  return uri;
}

absl::StatusOr<Rights> ParseUri(absl::string_view uri) {
  if (const std::optional<Rights> rights = RightsIn(uri)) return *rights;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CEscape(uri),
                   "\" names no rights; waybill://JOB/controller, trainer, observer or operator, "
                   "and waybill://JOB/worker/GROUP do"));
}

absl::Status CheckJob(const Rights& rights, const std::string& job) {
  if (rights.role == KeyRole::kAuthority || rights.job == job) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the key is that of ", ToString(rights), ", and this is job \"", job, "\""));
}

absl::Status CheckJoin(const Rights& rights, const std::string& job, const proto::Join& join) {
  WAYBILL_RETURN_IF_ERROR(CheckJob(rights, job));
  if (rights.role == KeyRole::kAuthority) return absl::OkStatus();
  const bool trainer = join.role() == static_cast<uint32_t>(Role::kTrainer);
  const bool allowed = trainer ? rights.role == KeyRole::kTrainer
                               : rights.role == KeyRole::kWorker && rights.group == join.group();
  if (allowed) return absl::OkStatus();
  return trainer ? Refuse(rights, "join as a trainer", "a trainer")
                 : Refuse(rights, absl::StrCat("join as a worker of group \"", join.group(), "\""),
                          "a worker of that group");
}

absl::Status CheckQuestion(const Rights& rights, const std::string& job,
                           const proto::Question& question) {
  WAYBILL_RETURN_IF_ERROR(CheckJob(rights, job));
  if (MayAsk(rights.role, question.kind_case())) return absl::OkStatus();
  const bool status = question.kind_case() == proto::Question::kStatus;
  return Refuse(rights, Name(question.kind_case()),
                status ? "an observer, an operator or a trainer" : "an operator");
}

}  // namespace waybill
