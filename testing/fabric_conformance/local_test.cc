// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "core/fabric/local/local_fabric.h"
#include "testing/fabric_conformance/conformance.h"

namespace waybill::testing_fabric {
namespace {

const NetworkUnderTest kLocal = {"local", []() -> Endpoints::MakeFabric {
                                   return [](const std::string&) { return *MakeLocalFabric(); };
                                 }};

INSTANTIATE_TEST_SUITE_P(Local, FabricConformance, testing::Values(kLocal), NameOfNetwork);
INSTANTIATE_TEST_SUITE_P(Local, MappingConformance, testing::Values(kLocal), NameOfNetwork);

}  // namespace
}  // namespace waybill::testing_fabric
