// The decisions to commit, on disk before anybody hears of them.
#ifndef WAYBILL_CORE_CONTROL_DECISION_LOG_H_
#define WAYBILL_CORE_CONTROL_DECISION_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"

namespace waybill {

struct Decision {
  uint64_t epoch = 0;
  uint32_t sequence = 0;
  uint64_t version = 0;
  std::string group;

  bool operator==(const Decision&) const = default;
};

// An append-only file, a line for each epoch that began and each commit; one controller at a time
// has it. Not thread-safe.
class DecisionLog {
 public:
  // Opens or begins the file; its folder is made if need be. An incomplete last line (a crash while
  // writing) is as good as absent.
  //
  // kUnavailable: another controller has it; kDataLoss: a line in it is not ours.
  static absl::StatusOr<std::unique_ptr<DecisionLog>> Open(const std::string& path);

  // On disk when these return OK.
  absl::Status BeginEpoch(uint64_t epoch);
  absl::Status Commit(const Decision& decision);

  // 0 before the first.
  uint64_t last_epoch() const { return last_epoch_; }
  const std::vector<Decision>& decisions() const { return decisions_; }

 private:
  absl::Status Read();
  absl::Status Append(const std::string& line);

  std::string path_;
  UniqueFd fd_;
  uint64_t last_epoch_ = 0;
  std::vector<Decision> decisions_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_DECISION_LOG_H_
