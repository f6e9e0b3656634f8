// SPDX-License-Identifier: Apache-2.0

// Runs in the guest: a kernel that lets a process lock little memory, and what it says then.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/fabric_conformance/endpoints.h"

namespace waybill {
namespace {

using testing_fabric::Endpoint;
using testing_fabric::Endpoints;
using testing_fabric::Lane;
using testing_fabric::Reached;

constexpr uint64_t kRegionBytes = 16 << 20;

// The limit does not hold for who may lock memory, as root may.
void LimitLockedMemory(rlim_t size_bytes) {
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  ASSERT_EQ(syscall(SYS_capget, &header, data), 0) << std::strerror(errno);
  for (__user_cap_data_struct& part : data) part.inheritable = 0;
  data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  data[CAP_TO_INDEX(CAP_IPC_LOCK)].permitted &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  ASSERT_EQ(syscall(SYS_capset, &header, data), 0) << std::strerror(errno);
  const rlimit limit = {.rlim_cur = size_bytes, .rlim_max = size_bytes};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0) << std::strerror(errno);
}

uint64_t CountOf(Endpoint& endpoint, absl::string_view name) {
  for (const FabricCount& count : endpoint.fabric().Counts()) {
    if (count.name == name) return count.value;
  }
  ADD_FAILURE() << "there is no count " << name;
  return 0;
}

class LockedMemoryTest : public testing::Test {
 protected:
  static std::vector<std::string> Nodes() {
    const char* text = std::getenv("WAYBILL_RXE_NODES");
    return absl::StrSplit(text == nullptr ? "" : text, ';');
  }

  Endpoints endpoints{[next = size_t{0}](const std::string&) mutable {
    VerbsOptions options;
    options.nics = absl::StrSplit(Nodes()[next++], ',');
    return *MakeVerbsFabric(options);
  }};
};

// In one process, since what was given up cannot be taken back.
TEST_F(LockedMemoryTest, WhatCannotBeLockedGoesByCopiesAndWhatCanBeDoesNot) {
  LimitLockedMemory(8 << 20);  // First: a device takes no calls of who has lost a right since.
  Endpoint& a = endpoints.Join("a");
  Endpoint& b = endpoints.Join("b");
  const Lane lane = endpoints.Connect(a, b);
  const Region small = endpoints.SourceAtA(lane, 4096, 5);
  const Region large = endpoints.SourceAtA(lane, kRegionBytes, 6);
  const Reached to_small = endpoints.AllocateAtB(lane, 4096);
  const Reached to_large = endpoints.AllocateAtB(lane, kRegionBytes);
  EXPECT_EQ(CountOf(a, "unregistered_regions"), 1u);
  EXPECT_EQ(CountOf(b, "unregistered_regions"), 1u);
  EXPECT_LT(CountOf(a, "registered_bytes"), 1u << 20);
  const std::string path = b.fabric().DescribeLane(lane.at_b);
  EXPECT_TRUE(absl::StrContains(path, "with copies here: register \"destination\" (16777216 "))
      << path;
  ASSERT_TRUE(endpoints.PostAndComplete(
      lane,
      {{large.id, 0, to_large.remote, 0, kRegionBytes}, {small.id, 0, to_small.remote, 0, 4096}},
      1));
  ASSERT_TRUE(endpoints.Until([&] { return !b.Immediates(lane.at_b).empty(); }));
  EXPECT_EQ(std::memcmp(to_large.region.memory.data, large.memory.data, kRegionBytes), 0);
  EXPECT_EQ(std::memcmp(to_small.region.memory.data, small.memory.data, 4096), 0);
  EXPECT_EQ(CountOf(a, "bounced_bytes"), kRegionBytes);
  EXPECT_EQ(CountOf(b, "delivered_bytes"), kRegionBytes);

  // From the unregistered to the registered, and the other way round.
  ASSERT_TRUE(endpoints.PostAndComplete(lane, {{large.id, 4096, to_small.remote, 0, 4096},
                                               {small.id, 0, to_large.remote, 77, 4096}}));
  EXPECT_EQ(std::memcmp(to_small.region.memory.data, large.memory.data + 4096, 4096), 0);
  endpoints.UntilQuiet();
  EXPECT_EQ(std::memcmp(to_large.region.memory.data + 77, small.memory.data, 4096), 0);

  // A key that is no more, as where the NIC looks at it.
  ASSERT_TRUE(b.fabric().Renew(to_large.region.id, Contents::kZeroed).ok());
  EXPECT_FALSE(endpoints.PostAndFail(lane, {{small.id, 0, to_large.remote, 0, 4096}}).ok());
  EXPECT_TRUE(testing_fabric::AllAre(to_large.region.memory, std::byte{0}));
}

}  // namespace
}  // namespace waybill
