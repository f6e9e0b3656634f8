// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/loopback/loopback.h"

#include <gtest/gtest.h>

#include "testing/fabric_conformance/conformance.h"

namespace waybill::testing_fabric {
namespace {

NetworkUnderTest Loopback(const std::string& name, const LoopbackOptions& options) {
  return {name, [options]() -> Endpoints::MakeFabric {
            const auto network = std::make_shared<LoopbackNetwork>(options);
            return [network](const std::string& endpoint) { return network->Join(endpoint); };
          }};
}

const NetworkUnderTest kPosted = Loopback("posted", {});
const NetworkUnderTest kShuffled = Loopback("posted_shuffled", {.seed = 7});
const NetworkUnderTest kMapped = Loopback("mapped", {.can_map = true});
const NetworkUnderTest kMappedShuffled = Loopback("mapped_shuffled", {.seed = 7, .can_map = true});

INSTANTIATE_TEST_SUITE_P(Loopback, FabricConformance,
                         testing::Values(kPosted, kShuffled, kMapped, kMappedShuffled),
                         NameOfNetwork);
INSTANTIATE_TEST_SUITE_P(Loopback, MappingConformance, testing::Values(kMapped, kMappedShuffled),
                         NameOfNetwork);

}  // namespace
}  // namespace waybill::testing_fabric
