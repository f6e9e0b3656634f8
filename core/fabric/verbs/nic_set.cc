// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/nic_set.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"

namespace waybill::verbs {
namespace {

// Compares names as people count: mlx5_2 comes before mlx5_10.
bool ComesBefore(absl::string_view a, absl::string_view b) {
  const auto is_digit = [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); };
  const auto take_number = [&](absl::string_view& text) {
    uint64_t number = 0;
    while (!text.empty() && is_digit(text[0])) {
      number = number * 10 + static_cast<uint64_t>(text[0] - '0');
      text.remove_prefix(1);
    }
    return number;
  };
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      const uint64_t number_a = take_number(a);
      const uint64_t number_b = take_number(b);
      if (number_a != number_b) return number_a < number_b;
    } else if (a[0] != b[0]) {
      return a[0] < b[0];
    } else {
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

}  // namespace

absl::StatusOr<std::unique_ptr<NicSet>> NicSet::Open(Verbs* verbs,
                                                     const std::vector<std::string>& names,
                                                     std::optional<uint32_t> gid_index) {
  std::vector<NamedNic> named;
  for (const std::string& name : names) {
    WAYBILL_ASSIGN_OR_RETURN(NamedNic one, ParseName(name, gid_index));
    named.push_back(std::move(one));
  }
  int count = 0;
  ibv_device** list = verbs->GetDeviceList(&count);
  if (list == nullptr || count == 0) {
    if (list != nullptr) verbs->FreeDeviceList(list);
    return absl::UnavailableError(
        "RDMA is not available: this host has no RDMA device (/sys/class/infiniband is empty); is "
        "the NIC's driver loaded?");
  }
  std::unique_ptr<NicSet> set(new NicSet(verbs));
  std::vector<std::string> reasons;
  std::sort(list, list + count, [verbs](ibv_device* a, ibv_device* b) {
    return ComesBefore(verbs->GetDeviceName(a), verbs->GetDeviceName(b));
  });
  uint32_t rail = 0;
  for (int i = 0; i < count; ++i) {
    absl::StatusOr<std::unique_ptr<Device>> device = Device::Open(verbs, list[i]);
    if (!device.ok()) {
      reasons.emplace_back(device.status().message());
      ++rail;  // For its port: most devices have one.
      continue;
    }
    const int events = (*device)->context()->async_fd;
    fcntl(events, F_SETFL, fcntl(events, F_GETFL) | O_NONBLOCK);
    const uint32_t first_rail = std::exchange(rail, rail + (*device)->limits().phys_port_cnt);
    absl::Status status = (*device)->CheckCarriesLanes();
    if (status.ok()) {
      set->devices_.push_back(*std::move(device));
      status = set->Add(set->devices_.size() - 1, first_rail, named, gid_index, reasons);
    }
    if (!status.ok()) reasons.emplace_back(status.message());
  }
  verbs->FreeDeviceList(list);
  for (size_t i = 0; i < named.size(); ++i) {
    const std::string& name = named[i].name;
    const auto found = std::find_if(set->nics_.begin(), set->nics_.end(),
                                    [&](const auto& used) { return used->nic.name() == name; });
    if (found == set->nics_.end()) {
      return absl::NotFoundError(absl::StrCat("there is no usable RDMA NIC \"", name, "\"",
                                              reasons.empty() ? "" : ": ",
                                              absl::StrJoin(reasons, "; ")));
    }
    (*found)->nic.rail = static_cast<uint32_t>(i);
  }
  if (set->nics_.empty()) {
    return absl::UnavailableError(
        absl::StrCat("RDMA is not available: no port is usable: ", absl::StrJoin(reasons, "; ")));
  }
  std::stable_sort(set->nics_.begin(), set->nics_.end(),
                   [](const auto& a, const auto& b) { return a->nic.rail < b->nic.rail; });
  return set;
}

absl::StatusOr<NicSet::NamedNic> NicSet::ParseName(absl::string_view text,
                                                   std::optional<uint32_t> gid_index) {
  const size_t equals = text.find('=');
  NamedNic named{.name = std::string(text.substr(0, equals)), .gid_index = gid_index};
  if (equals == absl::string_view::npos) return named;
  uint32_t index = 0;
  if (!absl::SimpleAtoi(text.substr(equals + 1), &index)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RDMA NIC \"", text, "\": behind = there is no GID index; an example is mlx5_0=3"));
  }
  named.gid_index = index;
  return named;
}

absl::Status NicSet::Add(size_t device_index, uint32_t first_rail,
                         const std::vector<NamedNic>& named, std::optional<uint32_t> gid_index,
                         std::vector<std::string>& reasons) {
  Device* device = devices_[device_index].get();
  bool used = false;
  for (uint32_t port = 1; port <= device->limits().phys_port_cnt; ++port) {
    auto nic = std::make_unique<UsedNic>(UsedNic{
        .nic = Nic(&verbs_, device, static_cast<uint8_t>(port)), .device_index = device_index});
    nic->nic.rail = first_rail + port - 1;
    nic->gid_index = gid_index;
    if (!named.empty()) {
      const auto wanted = std::find_if(named.begin(), named.end(), [&](const NamedNic& one) {
        return one.name == nic->nic.name();
      });
      if (wanted == named.end()) continue;
      nic->gid_index = wanted->gid_index;
    }
    if (absl::Status status = nic->nic.Refresh(nic->gid_index); !status.ok()) {
      reasons.emplace_back(status.message());
      continue;
    }
    WAYBILL_ASSIGN_OR_RETURN(nic->queues, CompletionQueues::Create(&verbs_, device));
    nic->probes = std::make_unique<ProbeMemory>(&verbs_, device);
    nic->connector = std::make_unique<Connector>();
    nics_.push_back(std::move(nic));
    used = true;
  }
  // Memory would be registered with it in vain.
  if (!used) devices_.pop_back();
  return absl::OkStatus();
}

void NicSet::KeepOnly(const std::vector<std::string>& names) {
  std::erase_if(nics_, [&](const std::unique_ptr<UsedNic>& used) {
    return std::find(names.begin(), names.end(), used->nic.name()) == names.end();
  });
  // Memory would be registered with the other devices in vain.
  std::vector<std::unique_ptr<Device>> devices;
  for (std::unique_ptr<Device>& device : devices_) {
    bool is_used = false;
    for (const auto& used : nics_) {
      if (&used->nic.device() != device.get()) continue;
      used->device_index = devices.size();
      is_used = true;
    }
    if (is_used) devices.push_back(std::move(device));
  }
  devices_ = std::move(devices);
}

std::vector<Device*> NicSet::devices() const {
  std::vector<Device*> devices;
  devices.reserve(devices_.size());
  for (const auto& device : devices_) devices.push_back(device.get());
  return devices;
}

absl::StatusOr<UsedNic*> NicSet::Choose(absl::string_view name) {
  UsedNic* best = nullptr;
  absl::Status why = absl::UnavailableError(absl::StrCat("there is no RDMA NIC \"", name, "\""));
  for (const auto& used : nics_) {
    if (!name.empty() && used->nic.name() != name) continue;
    if (!used->nic.status.ok()) {
      why = used->nic.status;
    } else if (best == nullptr || used->lanes < best->lanes) {
      best = used.get();
    }
  }
  if (best == nullptr) return why;
  return best;
}

std::vector<FabricNic> NicSet::Usable() const {
  std::vector<FabricNic> usable;
  for (const auto& used : nics_) {
    if (!used->nic.status.ok()) continue;
    usable.push_back({.name = used->nic.name(),
                      .rail = used->nic.rail,
                      .numa_node = used->nic.numa_node(),
                      .bytes_per_second = used->nic.bytes_per_second()});
  }
  return usable;
}

void NicSet::TakeEvents(const std::function<void(const NicTrouble&)>& report) {
  for (const auto& device : devices_) {
    ibv_async_event event{};
    while (verbs_.GetAsyncEvent(device->context(), &event) == 0) {
      // Before a queue pair that it names is destroyed: that would wait for it.
      verbs_.AckAsyncEvent(&event);
      TakeEvent(*device, event, report);
    }
  }
}

void NicSet::TakeEvent(Device& device, const ibv_async_event& event,
                       const std::function<void(const NicTrouble&)>& report) {
  const absl::Status status =
      absl::UnavailableError(absl::StrCat(device.name(), ": ", verbs_.EventText(event.event_type)));
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
      return report({.queue_pair = event.element.qp, .status = status});
    case IBV_EVENT_CQ_ERR:
      for (const auto& used : nics_) {
        const CqPair* dead = used->queues->MarkDead(event.element.cq);
        if (dead != nullptr) report({.queues = dead, .status = status});
      }
      return;
    case IBV_EVENT_DEVICE_FATAL:
      device.MarkFailed();
      [[fallthrough]];
    case IBV_EVENT_PORT_ERR:
      for (const auto& used : nics_) {
        if (&used->nic.device() != &device) continue;
        if (event.event_type == IBV_EVENT_PORT_ERR && used->nic.port() != event.element.port_num) {
          continue;
        }
        used->nic.status = status;
        report({.nic = used.get(), .status = status});
      }
      return;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_GID_CHANGE:
      for (const auto& used : nics_) {
        const bool concerned =
            &used->nic.device() == &device && used->nic.port() == event.element.port_num;
        if (concerned) (void)used->nic.Refresh(used->gid_index);
      }
      return;
    default:
      return;
  }
}

}  // namespace waybill::verbs
