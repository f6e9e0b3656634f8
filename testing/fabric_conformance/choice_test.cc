// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/fabric/choice/choice_fabric.h"
#include "core/fabric/local/local_fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/fabric_conformance/conformance.h"
#include "testing/fake_verbs/fake_network.h"

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

// All endpoints but "a" have local, too, which owns their memory and does not carry their lanes to
// "a".
const NetworkUnderTest kVerbs = {
    "verbs_beside_local",
    []() -> Endpoints::MakeFabric {
      const auto network = std::make_shared<fake_verbs::FakeNetwork>();
      return [network, joined = 0](const std::string& name) mutable {
        fake_verbs::FakeHost& host = network->Host(absl::StrCat(name, joined++));
        host.AddDevice("mlx5_0");
        std::vector<ChoiceMember> members;
        if (name != "a") {
          members.push_back({.fabric = *MakeLocalFabric(), .within_host = true});
        }
        members.push_back({.fabric = *MakeVerbsFabric({.library = &host})});
        return *MakeChoiceFabric(std::move(members), "");
      };
    },
    absl::Milliseconds(5)};

INSTANTIATE_TEST_SUITE_P(Choice, FabricConformance, testing::Values(kAll, kForced, kMixed, kVerbs),
                         NameOfNetwork);
INSTANTIATE_TEST_SUITE_P(Choice, MappingConformance, testing::Values(kAll), NameOfNetwork);

}  // namespace
}  // namespace waybill::testing_fabric
