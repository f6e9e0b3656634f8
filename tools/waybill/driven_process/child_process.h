// SPDX-License-Identifier: Apache-2.0

// A process that this process starts and drives. It reads commands and prints lines of JSON.
#ifndef WAYBILL_TOOLS_WAYBILL_DRIVEN_PROCESS_CHILD_PROCESS_H_
#define WAYBILL_TOOLS_WAYBILL_DRIVEN_PROCESS_CHILD_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"

namespace waybill {

// Not thread-safe.
class ChildProcess {
 public:
  // Runs this program with `arguments`. If `wrapper` is not empty, it is a command that runs the
  // command that follows it. `name` appears in errors.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      std::string name, std::vector<std::string> arguments,
      const std::vector<std::string>& wrapper = {});
  // Closes the process's standard input, and kills it by SIGKILL if it has not ended after 5 s.
  ~ChildProcess();

  absl::Status Send(const std::string& command);

  // Returns the next event with that name, and drops the events before it. If the event has an
  // "error", returns that as the status.
  //
  // kUnavailable: the process has ended; the message says how. kDeadlineExceeded.
  absl::StatusOr<nlohmann::json> Await(const std::string& event, absl::Time deadline);

  const std::string& name() const { return name_; }
  void Kill();  // Sends SIGKILL. The next Await() reports the end.

 private:
  absl::StatusOr<std::string> ReadLine(absl::Time deadline);
  absl::Status DescribeEnd();

  std::string name_;
  pid_t pid_ = -1;
  UniqueFd to_;
  UniqueFd from_;
  std::string buffered_;
};

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_DRIVEN_PROCESS_CHILD_PROCESS_H_
