// The addresses of a job's controllers, of which one leads and the others do not listen.
#ifndef WAYBILL_CORE_CONTROL_CONTROLLER_ADDRESSES_H_
#define WAYBILL_CORE_CONTROL_CONTROLLER_ADDRESSES_H_

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace waybill {

// Returns "a:7070" and "b:7070" for "a:7070,b:7070"; never nothing.
inline std::vector<std::string> SplitAddresses(absl::string_view text) {
  std::vector<std::string> addresses = absl::StrSplit(text, ',', absl::SkipWhitespace());
  if (addresses.empty()) addresses.emplace_back();
  return addresses;
}

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_CONTROLLER_ADDRESSES_H_
