// SPDX-License-Identifier: Apache-2.0

#include "core/host/examine_gpus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "core/host/fake_sys.h"

namespace waybill {
namespace {

using Level = Finding::Level;

// A GPU and a NIC below one switch, and a NIC of the other processor.
class ExamineGpusTest : public testing::Test {
 protected:
  static constexpr const char* kSwitch = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/";

  ExamineGpusTest() {
    const std::string below = "pci0000:3a/0000:3a:00.0/0000:3b:00.0/";
    sys_.Device(below + "0000:3c:04.0/0000:3d:00.0", "/sys/bus/pci/devices/0000:3d:00.0");
    sys_.Device(below + "0000:3c:08.0/0000:3e:00.0", "/sys/class/infiniband/mlx5_0/device");
    sys_.Device("pci0000:8a/0000:8b:00.0", "/sys/class/infiniband/mlx5_1/device");
    sys_.File("/proc/driver/nvidia/version",
              "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build");
    InGpu("numa_node", "0");
    InGpu("resource", "0x0000380000000000 0x0000383fffffffff 0x000000000014220c");
    Link("32.0 GT/s PCIe", "16");
  }
  void InGpu(const std::string& file, const std::string& text) {
    sys_.File(std::string(kSwitch) + "0000:3c:04.0/0000:3d:00.0/" + file, text);
  }
  void Link(const std::string& speed, const std::string& width) {
    InGpu("current_link_speed", speed);
    InGpu("max_link_speed", "32.0 GT/s PCIe");
    InGpu("current_link_width", width);
    InGpu("max_link_width", "16");
  }
  std::vector<Finding> All() {
    return ExamineGpus(sys_.root(), std::vector<SurveyedGpu>{gpu_}, ports_);
  }
  Finding Of(const std::string& subject) {
    for (const Finding& finding : All()) {
      if (finding.subject == subject) return finding;
    }
    ADD_FAILURE() << "nothing is said of " << subject;
    return {};
  }
  bool IsSaid(const std::string& subject) {
    const std::vector<Finding> all = All();
    return std::any_of(all.begin(), all.end(),
                       [&](const Finding& finding) { return finding.subject == subject; });
  }

  FakeSys sys_;
  SurveyedGpu gpu_ = {.ordinal = 0,
                      .name = "NVIDIA H200",
                      .uuid = "GPU-1",
                      .pci_address = "0000:3d:00.0",
                      .memory_bytes = uint64_t{140} << 30,
                      .exports_dmabuf = true,
                      .shares_memory = true,
                      .shares_created_memory = true};
  std::vector<SurveyedPort> ports_ = {{.name = "mlx5_1", .device = "mlx5_1"},
                                      {.name = "mlx5_0", .device = "mlx5_0"}};
};

TEST_F(ExamineGpusTest, NothingIsInTheWayOfAGpuBesideANic) {
  for (const Finding& finding : All()) {
    EXPECT_EQ(finding.level, Level::kGood) << finding.subject << ": " << finding.found;
  }
  EXPECT_EQ(Of("GPU driver").found, "580.65.06, with the open kernel modules");
  EXPECT_EQ(Of("GPU 0").found, "NVIDIA H200, 150.3 GB, GPU-1 at 0000:3d:00.0, NUMA node 0");
  EXPECT_EQ(Of("GPU 0, nearest NIC").found, "mlx5_0 (PIX: at most one switch between them)");
  EXPECT_EQ(Of("GPU 0, BAR1").found, "274.9 GB of 150.3 GB");
}

TEST_F(ExamineGpusTest, AHostWithoutGpusIsToldSoOnce) {
  const FakeSys empty;
  const std::vector<Finding> all = ExamineGpus(
      empty.root(), absl::UnavailableError("no GPU: libcuda.so.1 is not there"), ports_);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].level, Level::kGood);
  EXPECT_EQ(all[0].found, "no GPU: libcuda.so.1 is not there");
}

TEST_F(ExamineGpusTest, AHostWhoseGpusThisProcessCannotUseIsBad) {
  const std::vector<Finding> all =
      ExamineGpus(sys_.root(), absl::UnavailableError("no GPU: libcuda.so.1 is not there"), ports_);
  EXPECT_EQ(all[0].level, Level::kBad);
}

TEST_F(ExamineGpusTest, AGpuThatProcessesCannotShareIsSaidToBeSo) {
  EXPECT_FALSE(IsSaid("GPU 0, compute mode"));
  gpu_.compute_mode = ComputeMode::kOneProcess;
  EXPECT_EQ(Of("GPU 0, compute mode").level, Level::kNote);
  EXPECT_EQ(Of("GPU 0, compute mode").remedy, "nvidia-smi -i 0000:3d:00.0 -c DEFAULT");
  gpu_.compute_mode = ComputeMode::kNobody;
  EXPECT_EQ(Of("GPU 0, compute mode").level, Level::kBad);
}

TEST_F(ExamineGpusTest, GpusOfAmdAreCountedAndNotUsed) {
  EXPECT_FALSE(IsSaid("AMD GPUs"));
  const std::string nodes = "/sys/class/kfd/kfd/topology/nodes/";
  sys_.File(nodes + "0/gpu_id", "0");  // A processor.
  EXPECT_FALSE(IsSaid("AMD GPUs"));
  sys_.File(nodes + "1/gpu_id", "51140");
  sys_.File(nodes + "2/gpu_id", "7102");
  EXPECT_EQ(Of("AMD GPUs").found, "2, which Waybill does not use here");
  EXPECT_EQ(Of("AMD GPUs").level, Level::kNote);
  const std::vector<Finding> none_else =
      ExamineGpus(sys_.root(), absl::UnavailableError("no GPU: libcuda.so.1 is not there"), ports_);
  EXPECT_EQ(none_else.back().subject, "AMD GPUs");
}

TEST_F(ExamineGpusTest, GpusOfAmdThatAreUsedHaveTheirDriverAndARemedyOfTheirOwn) {
  sys_.File("/sys/bus/pci/devices/0000:3d:00.0/vendor", "0x1002");
  sys_.File("/sys/class/kfd/kfd/topology/nodes/1/gpu_id", "51140");
  EXPECT_FALSE(IsSaid("AMD GPUs"));
  EXPECT_EQ(Of("GPU driver").found, "amdgpu, of the kernel itself");
  EXPECT_EQ(Of("GPU driver").level, Level::kNote);
  sys_.File("/sys/module/amdgpu/version", "6.16.13");
  EXPECT_EQ(Of("GPU driver").found, "amdgpu, 6.16.13");
  gpu_.exports_dmabuf = false;
  EXPECT_TRUE(absl::StrContains(Of("GPU 0, memory over RDMA").remedy, "CONFIG_PCI_P2PDMA"));
}

TEST_F(ExamineGpusTest, MemoryThatNoNicReachesIsBad) {
  gpu_.exports_dmabuf = false;
  gpu_.has_peer_memory = true;
  Finding memory = Of("GPU 0, memory over RDMA");
  EXPECT_EQ(memory.level, Level::kBad);
  EXPECT_EQ(memory.found, "dma-buf: no; peer memory: the module is not loaded");
  EXPECT_TRUE(absl::StrContains(memory.remedy, "modprobe nvidia-peermem")) << memory.remedy;
  sys_.File("/sys/module/nvidia_peermem/version", "580.65.06");
  EXPECT_EQ(Of("GPU 0, memory over RDMA").level, Level::kGood);
  gpu_.has_peer_memory = false;
  EXPECT_EQ(Of("GPU 0, memory over RDMA").level, Level::kBad);
  ports_.clear();  // Nobody would reach it anyway.
  EXPECT_EQ(Of("GPU 0, memory over RDMA").level, Level::kGood);
}

TEST_F(ExamineGpusTest, WhatShowsInboundWritesToKernelsIsSaid) {
  EXPECT_EQ(Of("GPU 0, what NICs write").found, "kernels see it when the NIC has read it back");
  gpu_.inbound_writes = InboundWrites::kFlushed;
  EXPECT_EQ(Of("GPU 0, what NICs write").found, "kernels see it when the driver has flushed it");
  gpu_.inbound_writes = InboundWrites::kOrdered;
  EXPECT_EQ(Of("GPU 0, what NICs write").found, "kernels see it at once");
}

TEST_F(ExamineGpusTest, WhatOtherProcessesCannotOpenIsNoted) {
  EXPECT_EQ(Of("GPU 0, memory in other processes").found,
            "allocated at once: yes; in expandable segments: yes");
  gpu_.shares_memory = false;
  EXPECT_EQ(Of("GPU 0, memory in other processes").level, Level::kNote);
}

TEST_F(ExamineGpusTest, AMigInstanceIsNotSentToNvidiaPeermem) {
  gpu_.is_mig = true;
  gpu_.uuid = "MIG-1";
  EXPECT_TRUE(absl::StrContains(Of("GPU 0").found, "MIG-1 at")) << Of("GPU 0").found;
  EXPECT_EQ(Of("GPU 0, memory in other processes").found,
            "allocated at once: yes; in expandable segments: yes; only in those on "
            "the same MIG instance");
  gpu_.exports_dmabuf = false;
  const Finding memory = Of("GPU 0, memory over RDMA");
  EXPECT_EQ(memory.level, Level::kBad);
  EXPECT_EQ(memory.found, "dma-buf: no; peer memory: no, as for every MIG instance");
  EXPECT_FALSE(absl::StrContains(memory.remedy, "peermem")) << memory.remedy;
}

TEST_F(ExamineGpusTest, ClosedKernelModulesAreNoted) {
  sys_.File("/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Release Build");
  EXPECT_EQ(Of("GPU driver").level, Level::kNote);
}

TEST_F(ExamineGpusTest, ASlowLinkIsNotedSinceItMayBeIdleAndANarrowOneIsBad) {
  Link("2.5 GT/s PCIe", "16");
  EXPECT_EQ(Of("GPU 0, PCIe link").level, Level::kNote);
  Link("32.0 GT/s PCIe", "8");
  EXPECT_EQ(Of("GPU 0, PCIe link").level, Level::kBad);
}

TEST_F(ExamineGpusTest, AWindowSmallerThanTheMemoryIsNoted) {
  InGpu("resource", "0x0000380000000000 0x000038000fffffff 0x000000000014220c");
  EXPECT_EQ(Of("GPU 0, BAR1").level, Level::kNote);
  EXPECT_EQ(Of("GPU 0, BAR1").found, "0.3 GB of 150.3 GB");
}

TEST_F(ExamineGpusTest, AFarNicIsNotedAndOneThatDoesNotWorkIsNoNic) {
  ports_.pop_back();
  EXPECT_EQ(Of("GPU 0, nearest NIC").level, Level::kNote);
  EXPECT_EQ(Of("GPU 0, nearest NIC").found, "mlx5_1 (SYS: by the link between processors)");
  ports_[0].usable = absl::UnavailableError("the port is down");
  EXPECT_EQ(Of("GPU 0, nearest NIC").found, "there is no NIC that works");
}

TEST_F(ExamineGpusTest, WhatStandsBetweenGpuAndNicIsNoted) {
  EXPECT_FALSE(IsSaid("GPU 0, IOMMU"));
  EXPECT_FALSE(IsSaid("GPU 0, ACS"));
  InGpu("iommu_group/type", "DMA-FQ");
  std::string config(4096, '\0');
  config[0x100] = 0x0D;  // Access Control Services.
  config[0x106] = 0x04;  // P2P Request Redirect.
  sys_.File(std::string(kSwitch) + "config", config);
  EXPECT_EQ(Of("GPU 0, IOMMU").level, Level::kNote);
  EXPECT_TRUE(absl::StartsWith(Of("GPU 0, ACS").remedy, "NICs lose most of their rate, or fail; "));
  EXPECT_EQ(Of("GPU 0, ACS").found,
            "bridge 0000:3b:00.0 sends what it says to mlx5_0 up to the processor");
  InGpu("iommu_group/type", "identity");
  EXPECT_FALSE(IsSaid("GPU 0, IOMMU"));
}

}  // namespace
}  // namespace waybill
