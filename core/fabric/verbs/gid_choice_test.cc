// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/gid_choice.h"

#include <gtest/gtest.h>

#include <string>

namespace waybill::verbs {
namespace {

constexpr Gid kLinkLocal = {0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0x0A, 0xC1, 0xB2, 0xFF, 0xFE, 9, 9, 9};
constexpr Gid kIpv4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 1, 2, 3};
constexpr Gid kOtherIpv4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 9, 9, 9};
constexpr Gid kIpv6 = {0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
constexpr Gid kPort = {0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0xE4, 0x1D, 0x2D, 3, 0, 0x7B, 0x8E, 0xF0};

struct ChoiceCase {
  const char* name;
  std::vector<GidEntry> gids;
  std::optional<uint32_t> forced;
  std::optional<uint32_t> chosen;  // None: refused.
  const char* reason;
};

const ChoiceCase kChoiceCases[] = {
    {"mlx5_with_an_ipv4_address",
     {{0, GidKind::kRoceV1, kLinkLocal},
      {1, GidKind::kRoceV2, kLinkLocal},
      {2, GidKind::kRoceV1, kIpv4},
      {3, GidKind::kRoceV2, kIpv4}},
     {},
     3,
     "RoCE v2 with an IPv4 address"},
    {"mlx5_with_ipv6_before_ipv4",
     {{0, GidKind::kRoceV1, kLinkLocal},
      {1, GidKind::kRoceV2, kLinkLocal},
      {2, GidKind::kRoceV1, kIpv6},
      {3, GidKind::kRoceV2, kIpv6},
      {4, GidKind::kRoceV1, kIpv4},
      {5, GidKind::kRoceV2, kIpv4}},
     {},
     5,
     "RoCE v2 with an IPv4 address"},
    {"mlx5_with_ipv6_alone",
     {{0, GidKind::kRoceV1, kLinkLocal},
      {1, GidKind::kRoceV2, kLinkLocal},
      {2, GidKind::kRoceV1, kIpv6},
      {3, GidKind::kRoceV2, kIpv6}},
     {},
     3,
     "RoCE v2 with a global IPv6 address: there is none with an IPv4 address"},
    {"mlx5_without_an_address",
     {{0, GidKind::kRoceV1, kLinkLocal}, {1, GidKind::kRoceV2, kLinkLocal}},
     {},
     1,
     "RoCE v2 with a link-local address, which reaches one subnet only: there is no other"},
    {"two_addresses",
     {{3, GidKind::kRoceV2, kIpv4}, {5, GidKind::kRoceV2, kOtherIpv4}},
     {},
     3,
     "RoCE v2 with an IPv4 address"},
    {"rows_between_are_empty",
     {{0, GidKind::kRoceV2, kLinkLocal}, {9, GidKind::kRoceV2, kIpv4}},
     {},
     9,
     "RoCE v2 with an IPv4 address"},
    {"rxe",
     {{0, GidKind::kRoceV2, kLinkLocal}, {1, GidKind::kRoceV2, kIpv4}},
     {},
     1,
     "RoCE v2 with an IPv4 address"},
    {"rxe_whose_link_has_no_ipv4",
     {{0, GidKind::kRoceV2, kLinkLocal}},
     {},
     0,
     "RoCE v2 with a link-local address, which reaches one subnet only: there is no other"},
    {"an_old_nic",
     {{0, GidKind::kRoceV1, kLinkLocal}, {1, GidKind::kRoceV1, kIpv4}},
     {},
     0,
     "RoCE v1, which reaches one Ethernet segment only: there is no RoCE v2"},
    {"infiniband", {{0, GidKind::kInfiniBand, kPort}}, {}, 0, "the port's first, on InfiniBand"},
    {"infiniband_with_an_alias",
     {{0, GidKind::kInfiniBand, kPort}, {1, GidKind::kInfiniBand, kIpv6}},
     {},
     0,
     "the port's first, on InfiniBand"},
    {"forced",
     {{0, GidKind::kRoceV1, kLinkLocal}, {3, GidKind::kRoceV2, kIpv4}},
     0,
     0,
     "as it was asked for"},
    {"forced_to_what_is_not_there",
     {{0, GidKind::kRoceV1, kLinkLocal}, {3, GidKind::kRoceV2, kIpv4}},
     2,
     {},
     "the port has no GID of index 2; it has 2 GIDs"},
    {"the_first_belongs_to_another_namespace",
     {{0, GidKind::kRoceV1, kIpv4, true},
      {3, GidKind::kRoceV2, kIpv4, true},
      {5, GidKind::kRoceV2, kOtherIpv4}},
     {},
     5,
     "RoCE v2 with an IPv4 address"},
    {"all_belong_to_other_namespaces",
     {{0, GidKind::kRoceV1, kIpv4, true}, {3, GidKind::kRoceV2, kIpv4, true}},
     {},
     {},
     "the port has 2 GIDs, all of interfaces in other network namespaces: give this container an "
     "interface of the NIC with an address, or run it in the host's network"},
    {"none", {}, {}, {}, "the port has no GID: its network interface has no address"},
};

class GidChoiceTest : public testing::TestWithParam<ChoiceCase> {};

TEST_P(GidChoiceTest, FollowsTheRule) {
  const ChoiceCase& c = GetParam();
  const absl::StatusOr<GidChoice> choice = ChooseGid(c.gids, c.forced);
  if (c.chosen) {
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->entry.index, *c.chosen);
    EXPECT_EQ(choice->reason, c.reason);
  } else {
    EXPECT_EQ(choice.status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(choice.status().message(), c.reason);
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, GidChoiceTest, testing::ValuesIn(kChoiceCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill::verbs
