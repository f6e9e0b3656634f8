// SPDX-License-Identifier: Apache-2.0

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "testing/fault_drills/network.h"
#include "testing/fault_drills/party.h"
#include "testing/fault_drills/peer_process.h"

namespace waybill::drills {
namespace {

class Peer {
 public:
  explicit Peer(std::unique_ptr<Fabric> fabric) : party_(std::move(fabric)) {}

  // Until the test is gone.
  void Live() {
    std::string received;
    while (true) {
      party_.Turn();
      const bool can_sleep = party_.fabric().ArmWait();
      pollfd waiting[] = {
          {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
          {.fd = party_.fabric().wait_descriptor(), .events = POLLIN, .revents = 0}};
      // The fabric's own deadlines do not wake anybody.
      poll(waiting, 2, can_sleep ? 20 : 0);
      if (waiting[0].revents == 0) continue;
      char bytes[4096];
      const ssize_t size = read(STDIN_FILENO, bytes, sizeof(bytes));
      if (size <= 0) return;
      received.append(bytes, static_cast<size_t>(size));
      for (size_t end; (end = received.find('\n')) != std::string::npos; received.erase(0, end + 1))
        Answer(received.substr(0, end));
    }
  }

 private:
  void Answer(const std::string& line) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    const absl::StatusOr<std::string> done = Do(words);
    std::string answer =
        done.ok() ? absl::StrCat("ok ", *done)
                  : absl::StrCat("error ", absl::StrReplaceAll(done.status().ToString(),
                                                               {{" ", "_"}, {"\n", "_"}}));
    answer += '\n';
    (void)send(STDIN_FILENO, answer.data(), answer.size(), MSG_NOSIGNAL);
  }

  absl::StatusOr<std::string> Do(const std::vector<std::string>& words) {
    const std::string& verb = words[0];
    const auto number = [&](size_t i) {
      return static_cast<uint32_t>(std::strtoul(words.at(i).c_str(), nullptr, 10));
    };
    if (verb == "open") {
      WAYBILL_ASSIGN_OR_RETURN(const LaneId lane, party_.Open("test"));
      WAYBILL_ASSIGN_OR_RETURN(const std::string address, party_.fabric().LaneAddress(lane));
      return absl::StrCat(static_cast<uint32_t>(lane), " ", address);
    }
    // All others are about a lane, or a region.
    const LaneId lane{number(1)};
    const RegionId region{number(1)};
    if (verb == "connect") return Done(party_.fabric().ConnectLane(lane, words.at(2)));
    if (verb == "close") return Done(party_.Close(lane));
    if (verb == "state") {
      const LaneState s = party_.State(lane);
      return absl::StrCat(s.connected, " ", s.posted, " ", s.complete, " ", s.immediates, " ",
                          s.wrong, " ", s.failed, " ", s.refused);
    }
    if (verb == "receive") {
      return Told(party_.Receive(lane, {.slots = number(2), .write_bytes = number(3)}));
    }
    if (verb == "send") {
      return Done(party_.Send(lane, words.at(2),
                              {.slots = number(3), .write_bytes = number(4), .count = number(5)}));
    }
    if (verb == "grant") return Told(party_.GrantAgain(lane, RegionId{number(2)}));
    if (verb == "renew") return Done(party_.fabric().Renew(region, Contents::kKept));
    if (verb == "release") return Done(party_.fabric().Release(region));
    if (verb == "fill") {
      party_.Fill(region, static_cast<std::byte>(number(2)));
      return "";
    }
    if (verb == "count") {
      return absl::StrCat(party_.CountOf(region, static_cast<std::byte>(number(2))), " ",
                          party_.SurroundingsAreIntact(region));
    }
    return absl::InvalidArgumentError("no such command");
  }

  static absl::StatusOr<std::string> Done(const absl::Status& status) {
    if (!status.ok()) return status;
    return "";
  }
  static absl::StatusOr<std::string> Told(const absl::StatusOr<Destination>& destination) {
    if (!destination.ok()) return destination.status();
    return absl::StrCat(static_cast<uint32_t>(destination->region), " ", destination->descriptor);
  }

  Party party_;
};

}  // namespace

int PeerMain(int argc, char** argv) {
  if (argc != 4 || std::string(argv[1]) != "--peer") return -1;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Peer(MakeFabric(argv[2], static_cast<uint32_t>(std::atoi(argv[3])))).Live();
  return 0;
}

}  // namespace waybill::drills
