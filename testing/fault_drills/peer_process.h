// SPDX-License-Identifier: Apache-2.0

// A party in a separate process, which can be killed and stopped. The process runs the same
// program; see PeerMain().
#ifndef WAYBILL_TESTING_FAULT_DRILLS_PEER_PROCESS_H_
#define WAYBILL_TESTING_FAULT_DRILLS_PEER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "testing/fault_drills/party.h"

namespace waybill::drills {

class PeerProcess {
 public:
  PeerProcess(const std::string& network, uint32_t node);
  ~PeerProcess() { Kill(); }
  PeerProcess(const PeerProcess&) = delete;

  // Sends a command and returns the words of the answer. Fails the test if the answer is an error,
  // or if there is none.
  std::vector<std::string> Ask(const std::string& command);

  // Each returns once it has taken effect.
  void Kill();  // SIGKILL
  void Stop();  // SIGSTOP
  void GoOn();  // SIGCONT

  LaneState State(uint32_t lane);

 private:
  pid_t pid_ = -1;
  UniqueFd socket_;
  std::string received_;
};

// Must be called first in main(). If this process was started as a peer, runs the peer and returns
// its exit status; otherwise returns -1.
int PeerMain(int argc, char** argv);

}  // namespace waybill::drills

#endif  // WAYBILL_TESTING_FAULT_DRILLS_PEER_PROCESS_H_
