// SPDX-License-Identifier: Apache-2.0

#include "core/host/examine_host.h"

#include <limits.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/device/gpu_survey.h"
#include "core/host/examine_gpus.h"
#include "core/host/pci.h"
#include "core/net/tcp_socket.h"

namespace waybill {
namespace {

using Level = Finding::Level;

Finding MtuOf(const SurveyedPort& port) {
  Finding finding{.subject = absl::StrCat(port.name, ", MTU"),
                  .found = absl::StrCat(port.mtu_bytes, " of ", port.max_mtu_bytes, " bytes")};
  if (port.mtu_bytes >= 4096 || port.mtu_bytes >= port.max_mtu_bytes) return finding;
  finding.level = Level::kNote;
  finding.remedy =
      port.link_layer == "Ethernet"
          ? "set the network interface's MTU to 9000, here, at the peers and on the switches: RoCE "
            "then sends 4096 bytes a packet"
          : "let the subnet manager allow 4096 bytes";
  return finding;
}

Finding PcieOf(const HostView& host, const SurveyedPort& port) {
  const PciDevice device(absl::StrCat(host.root, "/sys/class/infiniband/", port.device, "/device"));
  const std::string speed = device.Read("current_link_speed");
  const std::string width = device.Read("current_link_width");
  const std::string most_speed = device.Read("max_link_speed");
  const std::string most_width = device.Read("max_link_width");
  Finding finding{.subject = absl::StrCat(port.device, ", PCIe link")};
  if (speed.empty()) {
    finding.found = port.software ? "none: a software device" : "not told by the kernel";
    return finding;
  }
  finding.found = absl::StrCat(speed, " x", width, " of ", most_speed, " x", most_width);
  if (speed == most_speed && width == most_width) return finding;
  finding.level = Level::kBad;
  finding.remedy =
      "the slot or the riser gives less than the NIC takes: move the card, and look at the BIOS";
  return finding;
}

Finding LockedMemory(const HostView& host) {
  Finding finding{.subject = "locked memory (RLIMIT_MEMLOCK)"};
  if (host.locked_memory_bytes == ~uint64_t{0}) {
    finding.found = "unlimited";
    return finding;
  }
  finding.found = absl::StrCat(host.locked_memory_bytes >> 10, " KiB");
  finding.level = Level::kBad;
  finding.remedy =
      "every registered byte is locked: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd "
      "unit, --ulimit memlock=-1 for a container";
  return finding;
}

Finding OpenFiles(const HostView& host) {
  Finding finding{.subject = "open files (RLIMIT_NOFILE)", .found = absl::StrCat(host.open_files)};
  if (host.open_files >= 4096) return finding;
  finding.level = Level::kNote;
  finding.remedy =
      "a lane takes up to four until it is connected: with hundreds of peers, `ulimit -Hn 65536`";
  return finding;
}

Finding Numa(const HostView& host, const std::vector<SurveyedPort>& ports) {
  size_t nodes = 0;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(host.root + "/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename();
    nodes += name.rfind("node", 0) == 0 && name.size() > 4 && isdigit(name[4]) != 0 ? 1 : 0;
  }
  Finding finding{.subject = "NUMA", .found = absl::StrCat(nodes, nodes == 1 ? " node" : " nodes")};
  std::set<uint32_t> used;
  for (const SurveyedPort& port : ports) {
    if (port.usable.ok()) used.insert(port.numa_node);
  }
  if (nodes < 2 || used.empty()) return finding;
  for (const uint32_t node : used) absl::StrAppend(&finding.found, ", NICs on node ", node);
  if (used.size() < nodes) {
    finding.level = Level::kNote;
    finding.remedy = absl::StrCat(
        "run ranks whose GPUs are on a NIC's node with it first: "
        "numactl --cpunodebind=",
        *used.begin());
  }
  return finding;
}

}  // namespace

HostView ThisHost() {
  HostView host;
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  host.locked_memory_bytes = limit.rlim_cur == RLIM_INFINITY ? ~uint64_t{0} : limit.rlim_cur;
  getrlimit(RLIMIT_NOFILE, &limit);
  host.open_files = limit.rlim_max;  // A rank raises its soft limit.
  return host;
}

std::vector<Finding> ExamineRdma(const absl::StatusOr<std::vector<SurveyedPort>>& ports) {
  if (!ports.ok()) {
    return {{.subject = "RDMA",
             .level = Level::kNote,
             .found = std::string(ports.status().message()),
             .remedy = "none is needed: tcp is used instead, at a fraction of an RDMA NIC's rate"}};
  }
  std::vector<Finding> findings;
  for (const SurveyedPort& port : *ports) {
    Finding finding{.subject = port.name};
    if (!port.usable.ok()) {
      finding.level = Level::kBad;
      finding.found = std::string(port.usable.message());
      finding.remedy = port.active && !port.gids.empty()
                           ? "without it, other NICs and tcp carry the lanes"
                       : port.link_layer == "Ethernet"
                           ? "ip link set its interface up, and give it an address"
                           : "look at the cable and the subnet manager: ibstat, sminfo";
      findings.push_back(finding);
      continue;
    }
    finding.found =
        absl::StrFormat("port %d, %s, active, %.0f Gbit/s%s", port.port, port.link_layer,
                        static_cast<double>(port.bytes_per_second) * 8e-9,
                        port.software ? ", emulated by the kernel (SoftRoCE)" : "");
    findings.push_back(finding);
    Finding gid{.subject = absl::StrCat(port.name, ", GID")};
    for (const SurveyedGid& one : port.gids) {
      absl::StrAppend(&gid.found, gid.found.empty() ? "" : "; ", one.index, ": ", one.kind, " ",
                      one.address);
    }
    absl::StrAppend(&gid.found, "; would use ", port.chosen_gid, ": ", port.chosen_reason);
    if (port.chosen_reason.find("link-local") != std::string::npos ||
        port.chosen_reason.rfind("RoCE v1", 0) == 0) {
      gid.level = Level::kNote;
      gid.remedy = "give the interface an IPv4 address: routed RoCE v2 needs one";
    }
    findings.push_back(gid);
    findings.push_back(MtuOf(port));
  }
  return findings;
}

std::vector<Finding> ExamineHost(const HostView& host, const std::vector<SurveyedPort>& ports) {
  std::vector<Finding> findings;
  std::set<std::string> devices;
  for (const SurveyedPort& port : ports) {
    if (devices.insert(port.device).second) findings.push_back(PcieOf(host, port));
  }
  findings.push_back(Numa(host, ports));
  Finding locked = LockedMemory(host);
  if (ports.empty() && locked.level == Level::kBad) {
    locked.level = Level::kNote;
    locked.remedy = "nothing without RDMA; with it: " + locked.remedy;
  }
  findings.push_back(std::move(locked));
  findings.push_back(OpenFiles(host));
  return findings;
}

Finding ExamineHostName(const std::string& name, const std::string& address) {
  Finding finding{.subject = absl::StrCat("host name ", name), .found = address};
  if (!net::HidesBehindLoopback(name, address)) return finding;
  finding.level = Level::kNote;
  absl::StrAppend(&finding.found, ", which other hosts cannot reach");
  finding.remedy =
      "take the name out of that line of /etc/hosts, or start the controller with --listen ADDRESS "
      "and ranks with --host ADDRESS";
  return finding;
}

Finding ExamineControlPort(const std::string& own_address, uint16_t port) {
  const net::HostPort address{.host = own_address, .port = port};
  Finding finding{.subject = absl::StrCat("control port ", net::ToString(address))};
  absl::StatusOr<net::Listener> listener = net::Listen(address);
  const bool in_use = !listener.ok();
  absl::StatusOr<UniqueFd> socket = net::BeginConnect(address);
  absl::Status status = socket.status();
  if (socket.ok()) {
    pollfd ready{.fd = socket->get(), .events = POLLOUT, .revents = 0};
    status = poll(&ready, 1, /*timeout=*/2000) == 1
                 ? net::FinishConnect(socket->get(), address)
                 : absl::DeadlineExceededError("no answer within 2 s: a firewall drops it");
  }
  if (status.ok()) {
    finding.found = in_use ? "somebody listens there already, and is reached"
                           : "free, and reached from this host";
    finding.remedy =
        "whether a firewall stops others: waybill doctor --serve here, and --peer there";
    return finding;
  }
  finding.level = Level::kBad;
  finding.found = std::string(in_use ? listener.status().message() : status.message());
  finding.remedy = "open it (TCP) for all ranks, or listen elsewhere: waybill controller --listen";
  return finding;
}

std::vector<Finding> ExamineThisHost(std::optional<uint32_t> gid_index, std::string own_address,
                                     uint16_t control_port) {
  const absl::StatusOr<std::vector<SurveyedPort>> ports = SurveyRdma(gid_index);
  const std::vector<SurveyedPort> found = ports.ok() ? *ports : std::vector<SurveyedPort>();
  std::vector<Finding> findings = ExamineRdma(ports);
  for (const std::vector<Finding>& more :
       {ExamineHost(ThisHost(), found), ExamineGpus(/*root=*/"", SurveyGpus(), found)}) {
    findings.insert(findings.end(), more.begin(), more.end());
  }
  std::array<char, HOST_NAME_MAX + 1> name{};
  gethostname(name.data(), name.size() - 1);
  if (const auto address = net::NumericAddress(name.data()); address.ok()) {
    findings.push_back(ExamineHostName(name.data(), *address));
  }
  if (own_address.empty()) {
    own_address = net::OwnAddressTowards(net::kAnotherNetwork).value_or("127.0.0.1");
  }
  findings.push_back(ExamineControlPort(own_address, control_port));
  return findings;
}

absl::string_view Name(Finding::Level level) {
  return level == Finding::Level::kGood ? "good" : level == Finding::Level::kNote ? "note" : "bad";
}

std::string FindingsToJson(const std::vector<Finding>& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"subject", finding.subject},
                    {"level", std::string(Name(finding.level))},
                    {"found", finding.found},
                    {"remedy", finding.remedy}});
  }
  return list.dump();
}

}  // namespace waybill
