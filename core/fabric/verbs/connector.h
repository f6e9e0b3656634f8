// SPDX-License-Identifier: Apache-2.0

// Connects queue pairs beside the progress thread, one after the other.
#ifndef WAYBILL_CORE_FABRIC_VERBS_CONNECTOR_H_
#define WAYBILL_CORE_FABRIC_VERBS_CONNECTOR_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace waybill::verbs {

// Connects the lanes of one NIC on a thread of its own. The progress thread calls everything.
class Connector {
 public:
  struct Done {
    uint32_t lane = 0;
    absl::Status status;
  };

  Connector() = default;
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  // Runs `connect` on the connector's thread, and then `wake`, which must be thread-safe.
  void Connect(uint32_t lane, std::function<absl::Status()> connect, std::function<void()> wake);
  // Returns once nothing runs for the lane, and nothing will.
  void Forget(uint32_t lane);
  // Returns what has been done since the last call.
  std::vector<Done> TakeDone();

 private:
  struct Task {
    uint32_t lane = 0;
    std::function<absl::Status()> connect;
    std::function<void()> wake;
  };

  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::optional<uint32_t> running_;  // The lane of the task that runs.
  std::vector<Done> done_;
  bool stopping_ = false;
  std::thread thread_;  // Since the first Connect().
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_CONNECTOR_H_
