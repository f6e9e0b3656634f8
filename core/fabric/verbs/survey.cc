// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/survey.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fabric/verbs/device.h"
#include "core/fabric/verbs/libibverbs.h"

namespace waybill {
namespace verbs {
namespace {

constexpr uint32_t MtuBytes(ibv_mtu mtu) { return 128u << mtu; }

SurveyedPort SurveyPort(Verbs* verbs, Device* device, uint8_t number,
                        std::optional<uint32_t> gid_index) {
  Nic nic(verbs, device, number);
  SurveyedPort port{.name = nic.name(), .device = device->name(), .port = number};
  port.usable = nic.Refresh(gid_index);
  port.active = nic.attributes().state == IBV_PORT_ACTIVE;
  if (port.usable.ok()) port.usable = device->CheckCarriesLanes();
  port.software = device->is_software();
  port.link_layer = nic.is_ethernet() ? "Ethernet" : "InfiniBand";
  port.mtu_bytes = MtuBytes(nic.attributes().active_mtu);
  port.max_mtu_bytes = MtuBytes(nic.attributes().max_mtu);
  port.bytes_per_second = nic.bytes_per_second();
  port.numa_node = nic.numa_node();
  port.max_message_bytes = nic.attributes().max_msg_sz;
  port.max_queue_pairs = static_cast<uint32_t>(device->limits().max_qp);
  for (const GidEntry& entry : nic.ReadGids()) {
    port.gids.push_back({entry.index, std::string(Name(entry.kind)),
                         absl::StrCat(ToString(entry.gid),
                                      entry.is_foreign ? " (in another network namespace)" : "")});
  }
  if (port.usable.ok()) {
    port.chosen_gid = nic.gid().entry.index;
    port.chosen_reason = nic.gid().reason;
  }
  return port;
}

}  // namespace
}  // namespace verbs

absl::StatusOr<std::vector<SurveyedPort>> SurveyRdma(std::optional<uint32_t> gid_index,
                                                     verbs::Verbs* library) {
  if (library == nullptr) {
    WAYBILL_ASSIGN_OR_RETURN(library, verbs::LoadLibibverbs());
  }
  int count = 0;
  ibv_device** list = library->GetDeviceList(&count);
  std::vector<SurveyedPort> ports;
  absl::Status last = absl::UnavailableError(
      "this host has no RDMA device (/sys/class/infiniband is empty): is the NIC's driver loaded?");
  for (int i = 0; list != nullptr && i < count; ++i) {
    const auto device = verbs::Device::Open(library, list[i]);
    if (!device.ok()) {
      last = device.status();
      continue;
    }
    for (uint32_t port = 1; port <= (*device)->limits().phys_port_cnt; ++port) {
      ports.push_back(
          verbs::SurveyPort(library, device->get(), static_cast<uint8_t>(port), gid_index));
    }
  }
  if (list != nullptr) library->FreeDeviceList(list);
  if (ports.empty()) return last;
  return ports;
}

}  // namespace waybill
