#include "core/tensor/format.h"

#include "absl/strings/str_cat.h"

namespace waybill {

absl::Status CheckConversion(const Format& source, const Format& destination) {
  if (source == destination) return absl::OkStatus();
  const bool plain = source.content == Content::kPlain;
  if (plain && destination.content == Content::kPlain && source.dtype == Dtype::kF32 &&
      destination.dtype == Dtype::kBf16) {
    return absl::OkStatus();
  }
  if (plain && destination.content != Content::kPlain &&
      (source.dtype == Dtype::kF32 || source.dtype == Dtype::kBf16 ||
       source.dtype == Dtype::kF16)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no conversion from ", ToString(source), " to ", ToString(destination),
                   "; there are: the same format, F32 to BF16, F32, F16 or BF16 quantised"));
}

std::string ToString(const Format& format) {
  switch (format.content) {
    case Content::kPlain:
      break;
    case Content::kQuantised:
      return ToString(format.quantisation);
    case Content::kScales:
      return absl::StrCat("scales of ", ToString(format.quantisation));
  }
  return std::string(Name(format.dtype));
}

}  // namespace waybill
