// How the demo talks to the ranks that it started: a command a line in, a JSON object a line out.
#ifndef WAYBILL_TOOLS_WAYBILL_DRIVEN_H_
#define WAYBILL_TOOLS_WAYBILL_DRIVEN_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace waybill {

// "publish 3"; "check 3"; "dump DIR".
struct DrivenCommand {
  std::string verb;
  std::string argument;

  uint64_t number() const;
};

// The next line of standard input; nothing at its end, which means: leave.
std::optional<DrivenCommand> ReadCommand();

// One line on standard output, at once.
void Tell(const nlohmann::json& event);

// {"event": name, "error": message} where the status is not OK.
nlohmann::json EventOf(const std::string& name, const absl::Status& status);

// Nanoseconds of the clock that all processes of one machine share.
int64_t SharedClockNanos();

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_DRIVEN_H_
