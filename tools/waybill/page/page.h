// SPDX-License-Identifier: Apache-2.0

// The page that shows a plan, a prediction or a live job: one file that needs no network.
//
// Its data is what --json prints of a prediction; a plan and a live job leave out what they do not
// have. Ranks are told by their places in "trainers" and "workers".
#ifndef WAYBILL_TOOLS_WAYBILL_PAGE_PAGE_H_
#define WAYBILL_TOOLS_WAYBILL_PAGE_PAGE_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "core/simulate/traffic.h"

namespace waybill {

// Adds what the heat map shows: "pairs" of a trainer and a worker, and "relays" of two workers,
// each [from, to, bytes].
void AddTraffic(const simulate::Traffic& traffic, nlohmann::json& data);

// Returns the page's HTML with its data, scripts and styles.
std::string MakePage(const nlohmann::json& data);

// Writes the page, or nothing. The error names the file.
absl::Status WritePage(const std::string& path, const nlohmann::json& data);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_PAGE_PAGE_H_
