// A cluster whose fabrics take faults by script.
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

enum class Network { kPosted, kMapped, kLocal };

std::string NameOf(Network network);

class FaultCluster {
 public:
  // Not connected.
  FaultCluster(Network network, const ClusterOptions& options);

  Cluster* operator->() { return cluster_.get(); }
  // Peers are named "worker 0" here, and "trainer 0" there.
  FaultyFabric& at_trainer(uint32_t t) {
    return static_cast<FaultyFabric&>(cluster_->trainer_fabric(t));
  }
  FaultyFabric& at_worker(uint32_t w) {
    return static_cast<FaultyFabric&>(cluster_->worker_fabric(w));
  }

  // Publishes, and looks that every worker shows it to the byte. What went wrong, else empty.
  std::string PublishAndCheck(uint64_t version);
  // Steps until it has happened, whatever fails meanwhile. False where it does not.
  bool Until(const std::function<bool()>& done);
  // Whether each worker shows exactly this version.
  bool AllShow(uint64_t version);

 private:
  const uint32_t worker_count_;
  std::unique_ptr<LoopbackNetwork> network_;
  std::unique_ptr<Cluster> cluster_;
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_CLUSTER_FAULT_CLUSTER_H_
