// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "testing/fabric_conformance/conformance.h"

namespace waybill::testing_fabric {
namespace {

const NetworkUnderTest kTcp = {
    .name = "tcp",
    .make = []() -> Endpoints::MakeFabric {
      return [](const std::string&) { return *MakeTcpFabric(); };
    },
    .settle = absl::Milliseconds(20),
};

INSTANTIATE_TEST_SUITE_P(Tcp, FabricConformance, testing::Values(kTcp), NameOfNetwork);

// Nothing is mapped, so nothing of this suite is asked.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MappingConformance);

}  // namespace
}  // namespace waybill::testing_fabric
