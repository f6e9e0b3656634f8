#include "core/tensor/format.h"

#include "absl/strings/str_cat.h"

namespace waybill {

absl::Status CheckConversion(const Format& source, const Format& destination) {
  if (source == destination) return absl::OkStatus();
  if (source.dtype == Dtype::kF32 && destination.dtype == Dtype::kBf16) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("no conversion from ", ToString(source), " to ",
                                                 ToString(destination),
                                                 "; there are: the same format, F32 to BF16"));
}

std::string ToString(const Format& format) { return std::string(Name(format.dtype)); }

}  // namespace waybill
