// A network of simulated RDMA NICs in one process. Hosts are made by name, then given devices:
//
//   FakeNetwork network;
//   network.Host("a").AddDevice("mlx5_0");
//   auto fabric = MakeVerbsFabric({.library = &network.Host("a")});
//
// At its end it fails the test for what programs left behind or did wrong. See README.md.
#ifndef WAYBILL_TESTING_FAKE_VERBS_FAKE_NETWORK_H_
#define WAYBILL_TESTING_FAKE_VERBS_FAKE_NETWORK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "testing/fake_verbs/fake_host.h"
#include "testing/fake_verbs/wire.h"

namespace waybill::fake_verbs {

struct PortName {
  std::string host;
  std::string device;
  uint8_t port = 1;
};

class FakeNetwork {
 public:
  explicit FakeNetwork(const WireOptions& options = {}) : wire_(options) {}
  ~FakeNetwork();

  // The one of that name; made where there is none.
  FakeHost& Host(const std::string& name);

  // Nothing passes between the two ports, and nobody is told.
  void Cut(const PortName& a, const PortName& b);
  void Heal(const PortName& a, const PortName& b);

  // Lets what can move do so, without a poll.
  void Step();

  // What programs did that none may do, since the last call; what is taken fails no test.
  std::vector<std::string> TakeMisuses();
  // Objects that are alive, by device.
  std::vector<std::string> Leaks() const;

 private:
  Wire::End EndOf(const PortName& name);

  mutable Wire wire_;
  std::map<std::string, std::unique_ptr<FakeHost>> hosts_;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_FAKE_NETWORK_H_
