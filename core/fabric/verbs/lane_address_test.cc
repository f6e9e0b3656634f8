// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/lane_address.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"

namespace waybill::verbs {
namespace {

const LaneAddress kUsual = {
    .rendezvous = "10.0.0.1:4321/00112233",
    .nic = "mlx5_0:2",
    .queue_pair = 0x1234,
    .first_packet = 0xFF'FFFF,
    .mtu = 5,
    .lid = 0,
    .gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, 1},
    .kind = GidKind::kRoceV2,
};

TEST(LaneAddress, ComesBackAsItWas) {
  LaneAddress infiniband = kUsual;
  infiniband.lid = 0xFFFF;
  infiniband.queue_pair = 0xFF'FFFF;
  infiniband.first_packet = 0;
  infiniband.mtu = 1;
  infiniband.gid[0] = 0xFE;
  infiniband.kind = GidKind::kInfiniBand;
  LaneAddress with_commas = kUsual;
  with_commas.rendezvous = "[2001:db8::1]:1,2,3/ff";
  for (const LaneAddress& address : {kUsual, infiniband, with_commas}) {
    const std::string text = ToString(address);
    for (const char c : text) EXPECT_TRUE(c > ' ' && c < 127) << text;
    const absl::StatusOr<LaneAddress> back = ParseLaneAddress(text);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, address) << text;
  }
}

TEST(LaneAddress, WhatIsNoneIsRefusedWithItsText) {
  const std::string gid = "00000000000000000000ffff0a000001";
  ASSERT_TRUE(ParseLaneAddress("1,2,3,0," + gid + ",2,mlx5_0,there").ok());
  for (const std::string& text : {
           std::string(),
           std::string("x"),
           std::string(7, ','),
           "1,2,3,0," + gid + ",2,mlx5_0",              // A part is missing.
           "1000000,2,3,0," + gid + ",2,mlx5_0,there",  // A number of 25 bits,
           "1,1000000,3,0," + gid + ",2,mlx5_0,there",
           "1,2,0,0," + gid + ",2,mlx5_0,there",  // an MTU that is none,
           "1,2,6,0," + gid + ",2,mlx5_0,there",
           "1,2,3,10000," + gid + ",2,mlx5_0,there",         // a LID of 17 bits,
           "1,2,3,0," + gid.substr(1) + ",2,mlx5_0,there",   // a GID that is too short,
           "1,2,3,0,0" + gid + ",2,mlx5_0,there",            // too long,
           "1,2,3,0,g" + gid.substr(1) + ",2,mlx5_0,there",  // or no number.
           "1,2,3,0," + gid + ",3,mlx5_0,there",             // A kind that is none.
           "-1,2,3,0," + gid + ",2,mlx5_0,there",
           "1,q,3,0," + gid + ",2,mlx5_0,there",
           std::string(100'000, '7'),
       }) {
    const absl::Status status = ParseLaneAddress(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 100);
    EXPECT_TRUE(absl::StrContains(status.message(), text.substr(0, 200)));
    EXPECT_LT(status.message().size(), 300u);
  }
}

TEST(LaneAddress, GidsAreWrittenAsPeopleDo) {
  EXPECT_EQ(ToString(kUsual.gid), "10.0.0.1");
  EXPECT_EQ(ToString(Gid{0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFE, 0, 0, 1}),
            "fe80:0:0:0:0:ff:fe00:1");
}

}  // namespace
}  // namespace waybill::verbs
