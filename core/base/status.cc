// SPDX-License-Identifier: Apache-2.0

#include "core/base/status.h"

#include <optional>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

constexpr absl::string_view kScopePayload = "waybill/scope";

}  // namespace

absl::string_view Name(Scope scope) {
  switch (scope) {
    case Scope::kCall:
      return "call";
    case Scope::kUpdate:
      return "update";
    case Scope::kPeer:
      return "peer";
  }
  return "unknown";
}

absl::Status WithScope(absl::Status status, Scope scope) {
  if (!status.ok() && scope > ScopeOf(status)) {
    status.SetPayload(kScopePayload, absl::Cord(std::string(1, static_cast<char>(scope))));
  }
  return status;
}

Scope ScopeOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kScopePayload);
  if (!payload.has_value() || payload->size() != 1) return Scope::kCall;
  return static_cast<Scope>(static_cast<unsigned char>((*payload)[0]));
}

absl::Status While(absl::string_view doing, absl::Status status) {
  if (status.ok()) return status;
  absl::Status told(status.code(), absl::StrCat(doing, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {  //
    told.SetPayload(url, payload);
  });
  return told;
}

absl::Status FirstError(absl::Status first, absl::Status second) {
  return first.ok() ? std::move(second) : std::move(first);
}

}  // namespace waybill
