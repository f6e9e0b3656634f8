// SPDX-License-Identifier: Apache-2.0

// How the demo drives its ranks: they read one command per line and print one JSON object per line.
#ifndef WAYBILL_TOOLS_WAYBILL_DRIVEN_PROCESS_DRIVEN_H_
#define WAYBILL_TOOLS_WAYBILL_DRIVEN_PROCESS_DRIVEN_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace waybill {

// A command such as "publish 3", "check 3" or "dump DIR".
struct DrivenCommand {
  std::string verb;
  std::string argument;

  uint64_t number() const;
};

// Returns the next line of standard input, or nullopt at its end, which tells the rank to leave.
std::optional<DrivenCommand> ReadCommand();

// Prints one line on standard output and flushes it.
void Tell(const nlohmann::json& event);

// Returns {"event": name}, with "error": message if the status is not OK.
nlohmann::json EventOf(const std::string& name, const absl::Status& status);

// Returns the time in nanoseconds of a clock that all processes of one machine share.
int64_t SharedClockNanos();

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_DRIVEN_PROCESS_DRIVEN_H_
