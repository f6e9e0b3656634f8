// The rules of core/fabric/fabric.h as tests, by capability. The test of a fabric links them and
// says on which networks they are to run:
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
  // A new network. It makes its endpoints; one by the name of one that is gone is that, restarted.
  std::function<Endpoints::MakeFabric()> make;
  // What an event may take at most on its way; zero where it is there when the call returns.
  absl::Duration settle = absl::ZeroDuration();
};

inline void PrintTo(const NetworkUnderTest& network, std::ostream* out) { *out << network.name; }

// What every fabric does.
class FabricConformance : public testing::TestWithParam<NetworkUnderTest> {
 protected:
  Endpoint& Join(const std::string& name) { return endpoints_.Join(name); }
  // Whether the lane still carries bytes and an immediate from a to b.
  bool Carries(const Lane& lane);

  Endpoints endpoints_{GetParam().make(), GetParam().settle};
};

// What a fabric does where capabilities().can_map.
class MappingConformance : public FabricConformance {};

inline std::string NameOfNetwork(const testing::TestParamInfo<NetworkUnderTest>& info) {
  return info.param.name;
}

}  // namespace waybill::testing_fabric

#endif  // WAYBILL_TESTING_FABRIC_CONFORMANCE_CONFORMANCE_H_
