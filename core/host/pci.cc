// SPDX-License-Identifier: Apache-2.0

#include "core/host/pci.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace waybill {
namespace {

// The folders from the root complex ("pci0000:3a") down to the device.
std::vector<std::string> PathOf(const std::filesystem::path& folder) {
  std::vector<std::string> path;
  for (const auto& part : folder) {
    if (!path.empty() || absl::StartsWith(part.string(), "pci")) path.push_back(part);
  }
  return path;
}

// Returns true if a device's configuration has Access Control Services with requests redirected.
// Offsets and bits are those of the PCI Express Base Specification: extended capabilities begin at
// 0x100 and are a list; ACS is number 0x0D, and its control register lies 6 bytes behind its
// header.
bool RedirectsRequests(const std::filesystem::path& config_file) {
  constexpr size_t kFirst = 0x100, kControl = 6;
  constexpr uint32_t kAcs = 0x0D, kRequestRedirect = 1 << 2;
  std::ifstream file(config_file, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)),
                                std::istreambuf_iterator<char>());
  const auto read = [&](size_t at, int size) {
    uint32_t value = 0;
    for (int i = 0; i < size; ++i) {
      value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + static_cast<size_t>(i)]))
               << (8 * i);
    }
    return value;
  };
  // Each capability has 4 bytes at least, so the list ends however it is linked.
  size_t at = kFirst;
  for (int left = 1024; left > 0 && at >= kFirst && at + kControl + 2 <= bytes.size(); --left) {
    const uint32_t header = read(at, 4);
    if ((header & 0xFFFF) == kAcs) return (read(at + kControl, 2) & kRequestRedirect) != 0;
    at = header >> 20;
  }
  return false;
}

}  // namespace

absl::string_view Describe(PciDistance distance) {
  switch (distance) {
    case PciDistance::kOneSwitch:
      return "PIX: at most one switch between them";
    case PciDistance::kSwitches:
      return "PXB: several switches between them";
    case PciDistance::kHostBridge:
      return "PHB: by the processor's PCIe bridge";
    case PciDistance::kNumaNode:
      return "NODE: by the processor, within its NUMA node";
    case PciDistance::kSystem:
      return "SYS: by the link between processors";
  }
  return "";
}

PciDevice::PciDevice(const std::filesystem::path& link) {
  std::error_code error;
  folder_ = std::filesystem::canonical(link, error);
}

std::string PciDevice::Read(absl::string_view file) const {
  std::ifstream stream(folder_ / std::string(file));
  std::string line;
  std::getline(stream, line);
  return line;
}

std::optional<uint32_t> PciDevice::numa_node() const {
  int node = -1;
  if (!absl::SimpleAtoi(Read("numa_node"), &node) || node < 0) return std::nullopt;
  return static_cast<uint32_t>(node);
}

uint64_t PciDevice::largest_region_bytes() const {
  // A line for each region: first byte, last byte, flags. All are 0 where there is no region.
  constexpr uint64_t kMemory = 0x200;
  std::ifstream file(folder_ / "resource");
  uint64_t most = 0;
  for (std::string line; std::getline(file, line);) {
    uint64_t first = 0, last = 0, flags = 0;
    std::istringstream(line) >> std::hex >> first >> last >> flags;
    if ((flags & kMemory) != 0 && last > first) most = std::max(most, last - first + 1);
  }
  return most;
}

std::optional<std::string> PciDevice::FindRedirectingBridge() const {
  for (auto bridge = folder_.parent_path();
       bridge.filename().string().find(':') != std::string::npos; bridge = bridge.parent_path()) {
    if (RedirectsRequests(bridge / "config")) return bridge.filename();
  }
  return std::nullopt;
}

PciDistance DistanceBetween(const PciDevice& a, const PciDevice& b) {
  const std::vector<std::string> from = PathOf(a.folder_), to = PathOf(b.folder_);
  const auto parted = std::mismatch(from.begin(), from.end(), to.begin(), to.end());
  const auto common = parted.first - from.begin();
  if (common == 0) {
    const std::optional<uint32_t> node = a.numa_node();
    return node && node == b.numa_node() ? PciDistance::kNumaNode : PciDistance::kSystem;
  }
  if (common == 1) return PciDistance::kHostBridge;
  // Below a switch's upper port there are its lower port and the device.
  const bool one_switch = from.end() - parted.first <= 2 && to.end() - parted.second <= 2;
  return one_switch ? PciDistance::kOneSwitch : PciDistance::kSwitches;
}

}  // namespace waybill
