// A party in a process of its own, which can be killed and stopped. It is this very program, run
// again: see PeerMain().
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

  // The words of its answer. A failure of the test where it says that something failed, or nothing.
  std::vector<std::string> Ask(const std::string& command);

  // Each returns when it is so.
  void Kill();  // SIGKILL
  void Stop();  // SIGSTOP
  void GoOn();  // SIGCONT

  LaneState State(uint32_t lane);

 private:
  pid_t pid_ = -1;
  UniqueFd socket_;
  std::string received_;
};

// To be called first in main(): where this program was run as a peer, the peer's life, and its exit
// status; else -1.
int PeerMain(int argc, char** argv);

}  // namespace waybill::drills

#endif  // WAYBILL_TESTING_FAULT_DRILLS_PEER_PROCESS_H_
