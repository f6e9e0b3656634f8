// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/format.h"

#include "absl/strings/str_cat.h"

namespace waybill {

absl::Status CheckConversion(const Format& source, const Format& destination) {
  if (source == destination) return absl::OkStatus();
  const bool from_half = source.dtype == Dtype::kBf16 || source.dtype == Dtype::kF16;
  const bool to_half = destination.dtype == Dtype::kBf16 || destination.dtype == Dtype::kF16;
  const bool from_f32 = source.dtype == Dtype::kF32;
  if (source.content == Content::kPlain) {
    const bool casts = (from_f32 && to_half) || (from_half && destination.dtype == Dtype::kF32) ||
                       (source.dtype == Dtype::kBf16 && destination.dtype == Dtype::kF16);
    const bool plain = destination.content == Content::kPlain;
    if (plain && AreSameBytes(source.dtype, destination.dtype)) return absl::OkStatus();
    if (plain ? casts : from_f32 || from_half) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "no conversion from ", ToString(source), " to ", ToString(destination),
      "; there are: the same format, U8 for 8-bit floats, F32 to and from F16 and BF16, BF16 to "
      "F16, each of them quantised; for others the trainer adds a tensor of the wanted type, which "
      "it fills before each publish"));
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
