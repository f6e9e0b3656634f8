// SPDX-License-Identifier: Apache-2.0

// A cluster with faulty fabrics.
#ifndef WAYBILL_TESTING_CLUSTER_FAULT_CLUSTER_H_
#define WAYBILL_TESTING_CLUSTER_FAULT_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/fabric/loopback/loopback.h"
#include "testing/cluster/cluster.h"
#include "testing/faulty_fabric/faulty_fabric.h"

namespace waybill {

enum class Network {
  kPosted,  // By way of staging slots.
  kDirect,  // From the tensors themselves, as far as nothing changes on the way.
  // Likewise, one post of a lane at a time. The progress thread copies what every second lane
  // brings, and digests it.
  kCopied,
  kMapped,
  kLocal,
  kTcp,  // As kDirect, through sockets.
};
// Returns whether the trainers post what they send, rather than storing it.
inline bool IsPosted(Network network) {
  return network != Network::kMapped && network != Network::kLocal;
}

std::string NameOf(Network network);

class FaultCluster {
 public:
  // Makes a cluster that is not connected yet.
  FaultCluster(Network network, const ClusterOptions& options);

  Cluster* operator->() { return cluster_.get(); }
  // The fabrics. A trainer's peers are named "worker 0", a worker's "trainer 0".
  FaultyFabric& at_trainer(uint32_t t) {
    return static_cast<FaultyFabric&>(cluster_->trainer_fabric(t));
  }
  FaultyFabric& at_worker(uint32_t w) {
    return static_cast<FaultyFabric&>(cluster_->worker_fabric(w));
  }

  // Publishes a version and checks that every worker shows it to the byte. Returns what went wrong,
  // or an empty text.
  std::string PublishAndCheck(uint64_t version);
  // Steps until `done` returns true, whatever fails meanwhile. Returns false if that never happens.
  bool Until(const std::function<bool()>& done);
  // Returns true if each worker shows exactly this version.
  bool AllShow(uint64_t version);

 private:
  const uint32_t worker_count_;
  std::unique_ptr<LoopbackNetwork> network_;
  std::unique_ptr<Cluster> cluster_;
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_CLUSTER_FAULT_CLUSTER_H_
