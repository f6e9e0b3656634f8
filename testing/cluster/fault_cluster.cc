// SPDX-License-Identifier: Apache-2.0

#include "testing/cluster/fault_cluster.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/fabric/local/local_fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"

namespace waybill {

namespace {

// Without threads what can happen happens soon, and much of what is waited for here does not.
ClusterOptions OfFewSteps(ClusterOptions options, Network network) {
  if (network != Network::kTcp) options.most_steps = 5'000;
  options.direct =
      network == Network::kDirect || network == Network::kCopied || network == Network::kTcp;
  return options;
}

}  // namespace

std::string NameOf(Network network) {
  switch (network) {
    case Network::kPosted:
      return "posted";
    case Network::kDirect:
      return "direct";
    case Network::kCopied:
      return "copied";
    case Network::kMapped:
      return "mapped";
    case Network::kLocal:
      return "local";
    case Network::kTcp:
      return "tcp";
  }
  return "";
}

FaultCluster::FaultCluster(Network network, const ClusterOptions& options)
    : worker_count_(options.workers),
      network_(std::make_unique<LoopbackNetwork>(
          LoopbackOptions{.can_map = network == Network::kMapped,
                          .copies_posts = network == Network::kCopied,
                          .most_posts_in_room = network == Network::kCopied ? 1 : ~uint32_t{0}})),
      cluster_(std::make_unique<Cluster>(
          OfFewSteps(options, network),
          [this, network](const std::string& name) -> std::unique_ptr<Fabric> {
            return std::make_unique<FaultyFabric>(network == Network::kLocal ? *MakeLocalFabric()
                                                  : network == Network::kTcp
                                                      ? *MakeTcpFabric()
                                                      : network_->Join(name));
          })) {}

std::string FaultCluster::PublishAndCheck(uint64_t version) {
  cluster_->FillTrainers(version);
  if (absl::Status status = cluster_->Publish(version); !status.ok()) return status.ToString();
  return AllShow(version) ? "" : absl::StrCat("version ", version, " is not shown to the byte");
}

bool FaultCluster::Until(const std::function<bool()>& done) {
  for (int i = 0; i < 5'000; ++i) {
    if (done()) return true;
    cluster_->Step();
  }
  return done();
}

bool FaultCluster::AllShow(uint64_t version) {
  for (uint32_t w = 0; w < worker_count_; ++w) {
    if (!cluster_->Shows(w, version)) return false;
  }
  return true;
}

}  // namespace waybill
