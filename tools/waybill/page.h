// The page that shows a plan, a prediction or a live job: one file that needs no network.
#ifndef WAYBILL_TOOLS_WAYBILL_PAGE_H_
#define WAYBILL_TOOLS_WAYBILL_PAGE_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"

namespace waybill {

// Returns the page's HTML with its data, scripts and styles. page/README.md describes the data.
std::string MakePage(const nlohmann::json& data);

// Writes the page, or nothing. The error names the file.
absl::Status WritePage(const std::string& path, const nlohmann::json& data);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_PAGE_H_
