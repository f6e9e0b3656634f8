// A process that this one started and drives: lines of JSON come out of it, commands go in.
#ifndef WAYBILL_TOOLS_WAYBILL_CHILD_PROCESS_H_
#define WAYBILL_TOOLS_WAYBILL_CHILD_PROCESS_H_

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
  // Runs this very program with other arguments, by way of `wrapper` (a command that runs the one
  // that follows it; empty: directly). `name` is for errors.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      std::string name, std::vector<std::string> arguments,
      const std::vector<std::string>& wrapper = {});
  // Ends it: by closing its standard input and, where that does not help within 5 s, by SIGKILL.
  ~ChildProcess();

  absl::Status Send(const std::string& command);

  // The next event with that name; others before it are dropped. Its "error", if it has one,
  // becomes the status.
  //
  // kUnavailable: the process has ended, with how; kDeadlineExceeded.
  absl::StatusOr<nlohmann::json> Await(const std::string& event, absl::Time deadline);

  const std::string& name() const { return name_; }
  void Kill();  // By SIGKILL; events tell that it has ended.

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

#endif  // WAYBILL_TOOLS_WAYBILL_CHILD_PROCESS_H_
