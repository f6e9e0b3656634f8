// SPDX-License-Identifier: Apache-2.0

// Runs where there are RDMA devices: in the SoftRoCE guest.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/fabric_conformance/conformance.h"

namespace waybill::testing_fabric {
namespace {

// Endpoints take the guest's nodes in turn, each with all NICs of its node.
Endpoints::MakeFabric Nodes() {
  const char* text = std::getenv("WAYBILL_RXE_NODES");
  const std::vector<std::string> nodes = absl::StrSplit(text == nullptr ? "" : text, ';');
  return [nodes, next = size_t{0}](const std::string&) mutable -> std::unique_ptr<Fabric> {
    VerbsOptions options;
    options.nics = absl::StrSplit(nodes[next++ % nodes.size()], ',');
    auto fabric = MakeVerbsFabric(options);
    EXPECT_TRUE(fabric.ok()) << fabric.status();
    return *std::move(fabric);
  };
}

const NetworkUnderTest kVerbs = {"verbs", Nodes, absl::Milliseconds(20)};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MappingConformance);
INSTANTIATE_TEST_SUITE_P(SoftRoce, FabricConformance, testing::Values(kVerbs), NameOfNetwork);

}  // namespace
}  // namespace waybill::testing_fabric
