#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/fabric/choice/choice_fabric.h"
#include "core/fabric/local/local_fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "testing/fabric_conformance/conformance.h"

namespace waybill::testing_fabric {
namespace {

std::unique_ptr<Fabric> MakeChoice(bool local, bool tcp) {
  std::vector<ChoiceMember> members;
  if (local) members.push_back({.fabric = *MakeLocalFabric(), .within_host = true});
  if (tcp) members.push_back({.fabric = *MakeTcpFabric()});
  return *MakeChoiceFabric(std::move(members), "");
}

const NetworkUnderTest kAll = {"local_and_tcp",
                               []() -> Endpoints::MakeFabric {
                                 return [](const std::string&) { return MakeChoice(true, true); };
                               },
                               absl::Milliseconds(5)};
const NetworkUnderTest kForced = {"tcp",
                                  []() -> Endpoints::MakeFabric {
                                    return
                                        [](const std::string&) { return MakeChoice(false, true); };
                                  },
                                  absl::Milliseconds(5)};
// Every second endpoint has tcp only, as if it were on another host.
const NetworkUnderTest kMixed = {"mixed",
                                 []() -> Endpoints::MakeFabric {
                                   return [joined = 0](const std::string&) mutable {
                                     return MakeChoice(joined++ % 2 == 0, true);
                                   };
                                 },
                                 absl::Milliseconds(5)};

INSTANTIATE_TEST_SUITE_P(Choice, FabricConformance, testing::Values(kAll, kForced, kMixed),
                         NameOfNetwork);
INSTANTIATE_TEST_SUITE_P(Choice, MappingConformance, testing::Values(kAll), NameOfNetwork);

}  // namespace
}  // namespace waybill::testing_fabric
