// SPDX-License-Identifier: Apache-2.0

#include "core/device/gpu_remedy.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"

namespace waybill {
namespace {

constexpr char kNoLibrary[] =
    "no GPU: libcuda.so.1: cannot open shared object file: No such file or directory";
constexpr char kUnknown[] = "no GPU: cuInit: CUDA_ERROR_UNKNOWN (unknown error)";
const std::vector<std::string> kModule = {"/proc/driver/nvidia/version"};
const std::vector<std::string> kWhole = {"/proc/driver/nvidia/version", "/dev/nvidiactl",
                                         "/dev/nvidia-uvm"};

struct RemedyCase {
  const char* name;
  std::vector<std::string> files;
  const char* reason;
  const char* says;  // Part of the remedy; "" for none.
};

const RemedyCase kCases[] = {
    {"a_host_without_gpus_needs_none", {}, kNoLibrary, ""},
    {"a_container_without_compute", kModule, kNoLibrary, "NVIDIA_DRIVER_CAPABILITIES=compute"},
    {"no_device_for_unified_memory", kModule, kUnknown, "/dev/nvidia-uvm is not there"},
    {"an_error_that_is_not_known", kWhole, kUnknown, ""},
    {"a_library_of_another_version", kWhole,
     "no GPU: cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (x)", "not that of the kernel's module"},
    {"a_divided_gpu_without_instances", kWhole, "no GPU: cuInit: CUDA_ERROR_NO_DEVICE (x)", "MIG"},
    {"a_driver_that_is_too_old_says_so_itself", kWhole,
     "no GPU: the driver (libcuda.so.1) is for CUDA 12.8", ""},
};

class RemedyTest : public testing::TestWithParam<RemedyCase> {};

TEST_P(RemedyTest, NamesWhatStandsInTheWay) {
  std::string root = testing::TempDir() + "remedy_XXXXXX";
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  for (const std::string& file : GetParam().files) {
    std::filesystem::create_directories(std::filesystem::path(root + file).parent_path());
    std::ofstream(root + file) << "\n";
  }
  const std::string remedy = RemedyForNoGpu(GetParam().reason, root);
  if (GetParam().says[0] == '\0') {
    EXPECT_EQ(remedy, "");
  } else {
    EXPECT_TRUE(absl::StrContains(remedy, GetParam().says)) << remedy;
  }
  std::filesystem::remove_all(root);
}

INSTANTIATE_TEST_SUITE_P(All, RemedyTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill
