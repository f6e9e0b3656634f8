// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/driven_process/driven.h"

#include <time.h>

#include <iostream>

#include "absl/strings/numbers.h"
#include "core/base/json_text.h"

namespace waybill {

uint64_t DrivenCommand::number() const {
  uint64_t value = 0;
  return absl::SimpleAtoi(argument, &value) ? value : 0;
}

std::optional<DrivenCommand> ReadCommand() {
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  const size_t space = line.find(' ');
  if (space == std::string::npos) return DrivenCommand{line, ""};
  return DrivenCommand{line.substr(0, space), line.substr(space + 1)};
}

void Tell(const nlohmann::json& event) { std::cout << JsonText(event) << std::endl; }

nlohmann::json EventOf(const std::string& name, const absl::Status& status) {
  nlohmann::json event = {{"event", name}};
  if (!status.ok()) event["error"] = std::string(status.message());
  return event;
}

int64_t SharedClockNanos() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

}  // namespace waybill
