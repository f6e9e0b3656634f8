// SPDX-License-Identifier: Apache-2.0

// Tests of the rules of core/fabric/fabric.h, by capability. The test of a fabric links them and
// says on which networks to run them:
//
//   INSTANTIATE_TEST_SUITE_P(Local, FabricConformance, testing::Values(kLocal), NameOfNetwork);
//   INSTANTIATE_TEST_SUITE_P(Local, MappingConformance, testing::Values(kLocal), NameOfNetwork);
#ifndef WAYBILL_TESTING_FABRIC_CONFORMANCE_CONFORMANCE_H_
#define WAYBILL_TESTING_FABRIC_CONFORMANCE_CONFORMANCE_H_

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "absl/time/time.h"
#include "testing/fabric_conformance/endpoints.h"

namespace waybill::testing_fabric {

struct NetworkUnderTest {
  std::string name;
  // Makes a new network, which makes endpoints. An endpoint with the name of a destroyed one is
  // that endpoint after a restart.
  std::function<Endpoints::MakeFabric()> make;
  // The longest time that an event may take, or zero if it is there when the call returns.
  absl::Duration settle = absl::ZeroDuration();
};

inline void PrintTo(const NetworkUnderTest& network, std::ostream* out) { *out << network.name; }

// Tests of every fabric.
class FabricConformance : public testing::TestWithParam<NetworkUnderTest> {
 protected:
  Endpoint& Join(const std::string& name) { return endpoints_.Join(name); }
  // Returns true if the lane still carries bytes and an immediate from a to b.
  bool Carries(const Lane& lane);

  Endpoints endpoints_{GetParam().make(), GetParam().settle};
};

// Tests of fabrics with capabilities().can_map.
class MappingConformance : public FabricConformance {};

inline std::string NameOfNetwork(const testing::TestParamInfo<NetworkUnderTest>& info) {
  return info.param.name;
}

}  // namespace waybill::testing_fabric

#endif  // WAYBILL_TESTING_FABRIC_CONFORMANCE_CONFORMANCE_H_
