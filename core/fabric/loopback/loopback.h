// SPDX-License-Identifier: Apache-2.0

// A network within one process, for tests: deterministic, with every order of events that a seed
// can pick.
#ifndef WAYBILL_CORE_FABRIC_LOOPBACK_LOOPBACK_H_
#define WAYBILL_CORE_FABRIC_LOOPBACK_LOOPBACK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "core/fabric/fabric.h"

namespace waybill {

struct LoopbackOptions {
  // Picks which lane moves next whenever several could; 0 is the order of opening.
  uint32_t seed = 0;
  // Lets peers map each other's allocated regions.
  bool can_map = false;
  // Makes CopiesPosts() return true for every second lane.
  bool copies_posts = false;
  // A lane with so many posts has no room.
  uint32_t most_posts_in_room = ~uint32_t{0};
  // Posts of all lanes that one Poll() of either side carries out.
  uint32_t posts_per_poll = 1;
};

// The network that the endpoints of one test share. Outlives them. Thread-safe by one lock.
class LoopbackNetwork {
 public:
  explicit LoopbackNetwork(LoopbackOptions options = {});
  ~LoopbackNetwork();

  // An endpoint, as a process has one.
  std::unique_ptr<Fabric> Join(const std::string& name);

  // Fails every lane of that endpoint at both ends, as its death would.
  void Kill(const std::string& name);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_LOOPBACK_LOOPBACK_H_
