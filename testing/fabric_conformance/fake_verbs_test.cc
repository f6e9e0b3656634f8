// SPDX-License-Identifier: Apache-2.0

// The verbs fabric over simulated NICs: in any build, without a device or a guest.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/fabric_conformance/conformance.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill::testing_fabric {
namespace {

using fake_verbs::DeviceOptions;
using fake_verbs::FakeHost;
using fake_verbs::FakeNetwork;
using fake_verbs::WireOptions;

// A network whose regions cannot be registered, except the bounce rings of lanes.
enum class Bounced { kNobody, kAll, kSender, kAllButSender };

struct Variant {
  std::string name;
  WireOptions wire;
  DeviceOptions device;
  uint32_t queue_depth = 256;
  Bounced bounced = Bounced::kNobody;
  uint32_t bounce_slots = 3;

  bool IsBounced(const std::string& name) const {
    if (name == "a") return bounced == Bounced::kAll || bounced == Bounced::kSender;
    return bounced == Bounced::kAll || bounced == Bounced::kAllButSender;
  }
};

// Every endpoint has a host of its own with two NICs; one by a name that was there is restarted.
NetworkUnderTest Fake(const Variant& variant) {
  return {.name = variant.name,
          .make = [variant]() -> Endpoints::MakeFabric {
            const auto network = std::make_shared<FakeNetwork>(variant.wire);
            const auto known = std::make_shared<std::set<std::string>>();
            return [=](const std::string& name) {
              FakeHost& host = network->Host(name);
              const VerbsOptions options{.queue_depth = variant.queue_depth,
                                         .bounce = {variant.bounce_slots, 1000},
                                         .library = &host};
              if (known->insert(name).second) {
                for (const char* device : {"mlx5_0", "mlx5_1"}) {
                  host.AddDevice(device, variant.device);
                  if (variant.IsBounced(name)) {
                    host.FailRegistrations(device, {.spared_bytes = options.bounce.ring_bytes()});
                  }
                }
              }
              auto fabric = MakeVerbsFabric(options);
              EXPECT_TRUE(fabric.ok()) << fabric.status();
              return *std::move(fabric);
            };
          },
          .settle = absl::Milliseconds(5)};
}

const NetworkUnderTest kNetworks[] = {
    Fake({.name = "as_mlx5"}),
    Fake({.name = "as_rxe",
          .device = {.ports = {{.max_message_bytes = 8 << 20}},
                     .vendor_id = 0xFFFFFF,
                     .dmabuf = false,
                     .completions_outlive_queue_pairs = true,
                     .seven_retries_are_endless = true}}),
    Fake({.name = "seed_7", .wire = {.seed = 7, .patience = 3, .completion_delay = 4}}),
    Fake({.name = "seed_8",
          .wire = {.seed = 8, .patience = 20},
          .device = {.completions_outlive_queue_pairs = true, .reuses_queue_pair_numbers = true}}),
    Fake({.name = "queue_depth_4",
          .wire = {.seed = 9},
          .device = {.max_inline_bytes = 0},
          .queue_depth = 4}),
    Fake({.name = "bounced", .bounced = Bounced::kAll}),
    Fake({.name = "bounced_at_the_sender", .bounced = Bounced::kSender}),
    Fake({.name = "bounced_at_the_receiver", .bounced = Bounced::kAllButSender}),
    Fake({.name = "bounced_seed_7",
          .wire = {.seed = 7, .patience = 3, .completion_delay = 4},
          .bounced = Bounced::kAll}),
    Fake({.name = "bounced_one_slot_queue_depth_4",
          .wire = {.seed = 9},
          .device = {.max_inline_bytes = 0, .completions_outlive_queue_pairs = true},
          .queue_depth = 4,
          .bounced = Bounced::kAll,
          .bounce_slots = 1}),
};

INSTANTIATE_TEST_SUITE_P(FakeVerbs, FabricConformance, testing::ValuesIn(kNetworks), NameOfNetwork);

// Nothing is mapped, so nothing of this suite is asked.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MappingConformance);

}  // namespace
}  // namespace waybill::testing_fabric
