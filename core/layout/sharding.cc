#include "core/layout/sharding.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "core/base/status.h"

namespace waybill {
namespace {

constexpr uint64_t kMaxWorld = 65536;

struct Field {
  absl::string_view name;
  uint32_t* value;
};

absl::Status ParseFields(absl::string_view text, absl::Span<const Field> fields) {
  const auto invalid = [&](absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat("sharding \"", text, "\": ", problem));
  };
  if (text.empty() || text == "whole") return absl::OkStatus();
  uint64_t seen = 0;
  uint64_t world = 1;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    // A number alone is the first way: so many rows, or parts.
    if (uint32_t number; item == text && absl::SimpleAtoi(text, &number)) {
      pair = {fields[0].name, text};
    }
    size_t at = 0;
    while (at < fields.size() && fields[at].name != pair.first) ++at;
    if (at == fields.size()) {
      std::string known;
      for (const Field& field : fields)
        absl::StrAppend(&known, known.empty() ? "" : ", ", field.name);
      return invalid(absl::StrCat("\"", pair.first, "\" is not one of ", known));
    }
    if ((seen & uint64_t{1} << at) != 0) return invalid(absl::StrCat(pair.first, " is said twice"));
    seen |= uint64_t{1} << at;
    uint32_t& value = *fields[at].value;
    if (!absl::SimpleAtoi(pair.second, &value) || value == 0 || value > kMaxWorld) {
      return invalid(absl::StrCat(pair.first, " is \"", pair.second,
                                  "\", allowed are whole numbers from 1 to ", kMaxWorld));
    }
    world *= value;
    if (world > kMaxWorld) {
      return invalid(absl::StrCat("more than the ", kMaxWorld, " ranks that are allowed"));
    }
  }
  return absl::OkStatus();
}

std::string FieldsToString(absl::Span<const std::pair<absl::string_view, uint32_t>> fields) {
  std::string text;
  for (const auto& [name, value] : fields) {
    if (value != 1) absl::StrAppend(&text, text.empty() ? "" : ",", name, "=", value);
  }
  return text.empty() ? "whole" : text;
}

}  // namespace

absl::StatusOr<TrainerSharding> TrainerSharding::Parse(absl::string_view text) {
  TrainerSharding s;
  WAYBILL_RETURN_IF_ERROR(
      ParseFields(text, {{"fsdp", &s.fsdp}, {"tp", &s.tp}, {"pp", &s.pp}, {"dp", &s.dp}}));
  return s;
}

absl::StatusOr<WorkerSharding> WorkerSharding::Parse(absl::string_view text) {
  WorkerSharding s;
  WAYBILL_RETURN_IF_ERROR(ParseFields(text, {{"tp", &s.tp}, {"dp", &s.dp}}));
  return s;
}

std::string ToString(const TrainerSharding& s) {
  return FieldsToString({{"fsdp", s.fsdp}, {"tp", s.tp}, {"pp", s.pp}, {"dp", s.dp}});
}

std::string ToString(const WorkerSharding& s) {
  return FieldsToString({{"tp", s.tp}, {"dp", s.dp}});
}

}  // namespace waybill
