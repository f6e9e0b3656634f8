// SPDX-License-Identifier: Apache-2.0

#include "core/host/examine_gpus.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/device/gpu_remedy.h"
#include "core/host/nearest_nics.h"
#include "core/host/pci.h"

namespace waybill {
namespace {

using Level = Finding::Level;

// Any of them says that the module for peer memory is loaded: NVIDIA's, its predecessor, AWS's; and
// AMD's.
constexpr std::array<const char*, 5> kPeerMemoryModules = {
    "/sys/module/nvidia_peermem/version", "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/module/nv_peer_mem/version", "/sys/module/efa_nv_peermem/version",
    "/sys/kernel/mm/memory_peers/amdkfd/version"};

struct Host {
  std::string root;
  bool peer_memory = false;  // Its module is loaded.
  bool open_driver = false;  // The kernel modules whose source is open.
  bool is_amd = false;       // The GPUs are AMD's.
  const std::vector<SurveyedPort>& ports;

  bool Has(absl::string_view path) const {
    return std::filesystem::exists(absl::StrCat(root, path));
  }
  std::string FirstLine(absl::string_view path) const {
    std::ifstream file(absl::StrCat(root, path));
    std::string line;
    std::getline(file, line);
    return line;
  }
  PciDevice DeviceAt(const SurveyedGpu& gpu) const {
    return PciDevice(absl::StrCat(root, "/sys/bus/pci/devices/", gpu.pci_address));
  }
  PciDevice DeviceOf(const SurveyedPort& port) const {
    return PciDevice(absl::StrCat(root, "/sys/class/infiniband/", port.device, "/device"));
  }
};

std::string Gigabytes(uint64_t bytes) {
  return absl::StrFormat("%.1f GB", static_cast<double>(bytes) / 1e9);
}

std::string SubjectOf(const SurveyedGpu& gpu, absl::string_view what) {
  return absl::StrCat("GPU ", gpu.ordinal, ", ", what);
}

Finding DriverOf(const Host& host) {
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  ...".
  const std::string line = host.FirstLine("/proc/driver/nvidia/version");
  Finding finding{.subject = "GPU driver"};
  if (line.empty()) {
    finding.found = "its version is not told by the kernel";
    return finding;
  }
  std::string version;
  for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    if (version.empty() && word.find_first_not_of("0123456789.") == absl::string_view::npos) {
      version = std::string(word);
    }
  }
  finding.found = absl::StrCat(version, host.open_driver ? ", with the open kernel modules"
                                                         : ", with the closed kernel modules");
  if (host.open_driver) return finding;
  finding.level = Level::kNote;
  finding.remedy =
      "only the open ones export memory as a dma-buf (nvidia-open); without them NICs "
      "need nvidia-peermem";
  return finding;
}

Finding AmdDriverOf(const Host& host) {
  const std::string version = host.FirstLine("/sys/module/amdgpu/version");
  return {.subject = "GPU driver",
          .level = Level::kNote,
          .found = absl::StrCat("amdgpu, ", version.empty() ? "of the kernel itself" : version),
          .remedy =
              "Waybill has never run on AMD's GPUs, only on simulated ones: compare what "
              "arrives before you rely on it"};
}

Finding ItselfOf(const Host& host, const SurveyedGpu& gpu) {
  const std::optional<uint32_t> node = host.DeviceAt(gpu).numa_node();
  return {.subject = absl::StrCat("GPU ", gpu.ordinal),
          .found = absl::StrCat(gpu.name, ", ", Gigabytes(gpu.memory_bytes), ", ", gpu.uuid, " at ",
                                gpu.pci_address,
                                node ? absl::StrCat(", NUMA node ", *node) : std::string())};
}

// Returns the number of AMD's GPUs. Their driver lists every processor; those that are not GPUs
// have the number 0.
int CountAmdGpus(const Host& host) {
  const std::string nodes = absl::StrCat(host.root, "/sys/class/kfd/kfd/topology/nodes");
  std::error_code none;
  int count = 0;
  for (const auto& node : std::filesystem::directory_iterator(nodes, none)) {
    std::ifstream file(node.path() / "gpu_id");
    uint64_t id = 0;
    if (file >> id && id != 0) ++count;
  }
  return count;
}

void AddAmdGpus(const Host& host, std::vector<Finding>& findings) {
  const int count = CountAmdGpus(host);
  if (count == 0) return;
  Finding finding{.subject = "AMD GPUs",
                  .found = absl::StrCat(count, ", which Waybill does not use here")};
  finding.level = Level::kNote;
  finding.remedy =
      "build Waybill with --config=hip, or copy their tensors to host memory, and give that";
  findings.push_back(std::move(finding));
}

// What is said of a GPU that not all processes may use.
std::optional<Finding> ComputeModeOf(const SurveyedGpu& gpu) {
  if (gpu.compute_mode == ComputeMode::kShared) return std::nullopt;
  const bool nobody = gpu.compute_mode == ComputeMode::kNobody;
  return Finding{.subject = SubjectOf(gpu, "compute mode"),
                 .level = nobody ? Level::kBad : Level::kNote,
                 .found = nobody
                              ? "prohibited: no process can use it"
                              : "exclusive: one process at a time can use it, so a trainer and a "
                                "worker cannot share it",
                 .remedy = absl::StrCat("nvidia-smi -i ", gpu.pci_address, " -c DEFAULT")};
}

Finding LinkOf(const Host& host, const SurveyedGpu& gpu) {
  const PciDevice device = host.DeviceAt(gpu);
  const std::string speed = device.Read("current_link_speed");
  const std::string width = device.Read("current_link_width");
  const std::string most_speed = device.Read("max_link_speed");
  const std::string most_width = device.Read("max_link_width");
  Finding finding{.subject = SubjectOf(gpu, "PCIe link")};
  if (speed.empty()) {
    finding.found = "not told by the kernel";
    return finding;
  }
  finding.found = absl::StrCat(speed, " x", width, " of ", most_speed, " x", most_width);
  if (width != most_width) {
    finding.level = Level::kBad;
    finding.remedy =
        "the slot or the riser gives less than the GPU takes: move the card, and look at the BIOS";
  } else if (speed != most_speed) {
    finding.level = Level::kNote;
    finding.remedy = "an idle GPU slows its link down: look again while it works";
  }
  return finding;
}

Finding DirectMemoryOf(const Host& host, const SurveyedGpu& gpu) {
  Finding finding{.subject = SubjectOf(gpu, "memory over RDMA")};
  const bool by_peer_memory = gpu.has_peer_memory && host.peer_memory;
  finding.found =
      absl::StrCat("dma-buf: ", gpu.exports_dmabuf ? "yes" : "no", "; peer memory: ",
                   by_peer_memory        ? "yes"
                   : host.peer_memory    ? "the module is loaded, and the GPU does not support it"
                   : gpu.has_peer_memory ? "the module is not loaded"
                   : gpu.is_mig          ? "no, as for every MIG instance"
                                         : "no");
  if (gpu.exports_dmabuf || by_peer_memory || host.ports.empty()) return finding;
  finding.level = Level::kBad;
  finding.remedy =
      absl::StrCat("NICs cannot reach its memory, and every byte crosses the host's twice: ",
                   host.is_amd        ? "boot a kernel that has CONFIG_PCI_P2PDMA and "
                                        "CONFIG_DMABUF_MOVE_NOTIFY"
                   : host.open_driver ? ""
                                      : "install the open kernel modules (nvidia-open), or ",
                   host.is_amd  ? ""
                   : gpu.is_mig ? "use the GPU undivided"
                                : "modprobe nvidia-peermem");
  return finding;
}

Finding VisibilityOf(const SurveyedGpu& gpu) {
  Finding finding{.subject = SubjectOf(gpu, "what NICs write")};
  switch (gpu.inbound_writes) {
    case InboundWrites::kOrdered:
      finding.found = "kernels see it at once";
      break;
    case InboundWrites::kFlushed:
      finding.found = "kernels see it when the driver has flushed it";
      break;
    case InboundWrites::kReadBack:
      finding.found = "kernels see it when the NIC has read it back";
      break;
  }
  return finding;
}

Finding SharedMemoryOf(const SurveyedGpu& gpu) {
  Finding finding{.subject = SubjectOf(gpu, "memory in other processes")};
  finding.found =
      absl::StrCat("allocated at once: ", gpu.shares_memory ? "yes" : "no",
                   "; in expandable segments: ", gpu.shares_created_memory ? "yes" : "no",
                   gpu.is_mig ? "; only in those on the same MIG instance" : "");
  if (gpu.shares_memory) return finding;
  finding.level = Level::kNote;
  finding.remedy = absl::StrCat(
      "between processes of this host ",
      gpu.shares_created_memory ? "other memory than expandable segments" : "everything",
      " goes through the host's memory; a driver that runs in a virtual machine may lack it");
  return finding;
}

Finding WindowOf(const Host& host, const SurveyedGpu& gpu) {
  const uint64_t window_bytes = host.DeviceAt(gpu).largest_region_bytes();
  Finding finding{.subject = SubjectOf(gpu, "BAR1")};
  if (window_bytes == 0) {
    finding.found = "not told by the kernel";
    return finding;
  }
  finding.found = absl::StrCat(Gigabytes(window_bytes), " of ", Gigabytes(gpu.memory_bytes));
  if (window_bytes >= gpu.memory_bytes) return finding;
  finding.level = Level::kNote;
  finding.remedy =
      "NICs reach no more than that of its memory at a time: turn on Resizable BAR and "
      "\"Above 4G Decoding\" in the BIOS";
  return finding;
}

Finding NearestNicOf(const Host& host, const SurveyedGpu& gpu, const SurveyedPort*& nearest) {
  Finding finding{.subject = SubjectOf(gpu, "nearest NIC")};
  std::vector<std::string> usable;
  for (const SurveyedPort& port : host.ports) {
    if (port.usable.ok()) usable.push_back(port.name);
  }
  const NearestNics found = FindNearestNics(gpu.pci_address, usable, host.root);
  if (found.names.empty()) {
    finding.found = "there is no NIC that works";
    return finding;
  }
  nearest = &*std::find_if(host.ports.begin(), host.ports.end(), [&](const SurveyedPort& port) {
    return port.name == found.names.front();
  });
  finding.found =
      absl::StrCat(absl::StrJoin(found.names, ", "), " (", Describe(found.distance), ")");
  if (found.distance <= PciDistance::kSwitches) return finding;
  finding.level = Level::kNote;
  finding.remedy =
      "traffic between the two goes by the processor, at a lower rate than by a switch; "
      "virtual machines hide switches";
  return finding;
}

// What stands between the GPU and its nearest NIC, if anything does.
std::vector<Finding> ObstaclesOf(const Host& host, const SurveyedGpu& gpu,
                                 const SurveyedPort& nearest) {
  std::vector<Finding> findings;
  const PciDevice device = host.DeviceAt(gpu);
  if (const std::string type = device.Read("iommu_group/type"); absl::StartsWith(type, "DMA")) {
    findings.push_back({.subject = SubjectOf(gpu, "IOMMU"),
                        .level = Level::kNote,
                        .found = absl::StrCat("translates its addresses (", type, ")"),
                        .remedy = "registrations of more than 2 GB may fail, and NICs are slower: "
                                  "boot with iommu=pt"});
  }
  const PciDevice nic = host.DeviceOf(nearest);
  if (DistanceBetween(device, nic) > PciDistance::kSwitches) return findings;
  for (const PciDevice& end : {device, nic}) {
    const std::optional<std::string> bridge = end.FindRedirectingBridge();
    if (!bridge) continue;
    findings.push_back(
        {.subject = SubjectOf(gpu, "ACS"),
         .level = Level::kNote,
         .found = absl::StrCat("bridge ", *bridge, " sends what it says to ", nearest.name,
                               " up to the processor"),
         .remedy = absl::StrCat(
             "NICs lose most of their rate, or fail; outside of virtual machines, turn "
             "that off: setpci -s ",
             *bridge, " ECAP_ACS+6.w=0000 after each boot, or in the BIOS")});
    break;
  }
  return findings;
}

}  // namespace

std::vector<Finding> ExamineGpus(const std::string& root,
                                 const absl::StatusOr<std::vector<SurveyedGpu>>& gpus,
                                 const std::vector<SurveyedPort>& ports) {
  Host host{.root = root, .ports = ports};
  if (!gpus.ok()) {
    std::vector<Finding> findings = {{.subject = "GPUs",
                                      .level = HasNvidiaDriver(root) ? Level::kBad : Level::kGood,
                                      .found = std::string(gpus.status().message())}};
    AddAmdGpus(host, findings);
    return findings;
  }
  for (const char* module : kPeerMemoryModules) {
    host.peer_memory = host.peer_memory || host.Has(module);
  }
  host.open_driver =
      absl::StrContains(host.FirstLine("/proc/driver/nvidia/version"), "Open Kernel Module");
  for (const SurveyedGpu& gpu : *gpus) {
    host.is_amd = host.is_amd || host.DeviceAt(gpu).Read("vendor") == "0x1002";
  }
  std::vector<Finding> findings = {host.is_amd ? AmdDriverOf(host) : DriverOf(host)};
  for (const SurveyedGpu& gpu : *gpus) {
    const SurveyedPort* nearest = nullptr;
    findings.push_back(ItselfOf(host, gpu));
    if (const auto mode = ComputeModeOf(gpu)) findings.push_back(*mode);
    findings.push_back(LinkOf(host, gpu));
    findings.push_back(WindowOf(host, gpu));
    findings.push_back(DirectMemoryOf(host, gpu));
    findings.push_back(VisibilityOf(gpu));
    findings.push_back(SharedMemoryOf(gpu));
    findings.push_back(NearestNicOf(host, gpu, nearest));
    if (nearest == nullptr) continue;
    for (Finding& finding : ObstaclesOf(host, gpu, *nearest))
      findings.push_back(std::move(finding));
  }
  if (!host.is_amd) AddAmdGpus(host, findings);
  return findings;
}

}  // namespace waybill
