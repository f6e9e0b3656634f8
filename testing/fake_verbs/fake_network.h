// SPDX-License-Identifier: Apache-2.0

// A network of simulated RDMA NICs in one process. Create hosts by name and give them devices:
//
//   FakeNetwork network;
//   network.Host("a").AddDevice("mlx5_0");
//   auto fabric = MakeVerbsFabric({.library = &network.Host("a")});
//
// The destructor fails the test for leaked objects and for misuse. See README.md.
#ifndef WAYBILL_TESTING_FAKE_VERBS_FAKE_NETWORK_H_
#define WAYBILL_TESTING_FAKE_VERBS_FAKE_NETWORK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
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

  // Returns the host of that name, and makes it if there is none.
  FakeHost& Host(const std::string& name);

  // Cuts the path between two ports, without any event.
  void Cut(const PortName& a, const PortName& b);
  void Heal(const PortName& a, const PortName& b);

  // Loses packets of more than `bytes` of data between two ports, as where MTUs differ.
  void DropLonger(const PortName& a, const PortName& b, uint64_t bytes);

  // Returns the time on the calling thread's clock, which only its own calls that take time
  // advance.
  absl::Time now() const;

  // Moves what can move, without a poll.
  void Step();

  // Returns misuse by programs since the last call. Misuse that was returned does not fail the
  // test.
  std::vector<std::string> TakeMisuses();
  // Returns the living objects, by device.
  std::vector<std::string> Leaks() const;

 private:
  Wire::End EndOf(const PortName& name);

  mutable Wire wire_;
  std::map<std::string, std::unique_ptr<FakeHost>> hosts_;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_FAKE_NETWORK_H_
