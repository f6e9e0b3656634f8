// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace waybill {
namespace {

struct File {
  std::string path;
  std::string text;
};

struct Host {
  std::string name;
  std::vector<File> files;
  uint64_t size_bytes;
  std::string limit;
};

const File kMeminfo = {"proc/meminfo",
                       "MemTotal:  4000 kB\nMemFree:  100 kB\nMemAvailable:    2000 kB\n"};
const File kGroup = {"proc/self/cgroup", "4:memory:/old\n0::/outer/inner\n"};

const Host kHosts[] = {
    {"nothing_is_told", {}, ~uint64_t{0}, ""},
    {"the_host_is_the_limit", {kMeminfo}, 2'048'000, "MemAvailable"},
    {"a_group_without_a_limit",
     {kMeminfo,
      kGroup,
      {"sys/fs/cgroup/outer/inner/memory.max", "max\n"},
      {"sys/fs/cgroup/outer/inner/memory.current", "1000\n"}},
     2'048'000,
     "MemAvailable"},
    {"the_group_is_the_limit",
     {kMeminfo,
      kGroup,
      {"sys/fs/cgroup/outer/inner/memory.max", "900000\n"},
      {"sys/fs/cgroup/outer/inner/memory.current", "500000\n"},
      {"sys/fs/cgroup/outer/inner/memory.stat",
       "anon 1\nactive_file 20000\ninactive_file 100000\n"}},
     520'000,
     "memory.max of control group /outer/inner"},
    {"its_parent_is_the_limit",
     {kMeminfo,
      kGroup,
      {"sys/fs/cgroup/outer/inner/memory.max", "900000\n"},
      {"sys/fs/cgroup/outer/inner/memory.current", "500000\n"},
      {"sys/fs/cgroup/outer/memory.max", "800000\n"},
      {"sys/fs/cgroup/outer/memory.current", "700000\n"}},
     100'000,
     "memory.max of control group /outer"},
    {"more_is_taken_than_allowed",
     {kGroup,
      {"sys/fs/cgroup/outer/memory.max", "100\n"},
      {"sys/fs/cgroup/outer/memory.current", "700\n"}},
     0,
     "memory.max of control group /outer"},
};

class AvailableMemoryTest : public testing::TestWithParam<Host> {};

TEST_P(AvailableMemoryTest, TheLeastOfAllLimits) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / GetParam().name;
  for (const File& file : GetParam().files) {
    std::filesystem::create_directories((root / file.path).parent_path());
    std::ofstream(root / file.path) << file.text;
  }
  const AvailableMemory memory = FindAvailableMemory(root.string());
  EXPECT_EQ(memory.size_bytes, GetParam().size_bytes);
  EXPECT_EQ(memory.limit, GetParam().limit);
}

INSTANTIATE_TEST_SUITE_P(Hosts, AvailableMemoryTest, testing::ValuesIn(kHosts),
                         [](const auto& info) { return info.param.name; });

TEST(AvailableMemory, ThisHostHasSome) {
  EXPECT_GT(FindAvailableMemory().size_bytes, uint64_t{1} << 20);
  EXPECT_LT(FindAvailableMemory().size_bytes, uint64_t{1} << 50);
}

}  // namespace
}  // namespace waybill
