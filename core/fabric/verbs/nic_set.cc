#include "core/fabric/verbs/nic_set.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"

namespace waybill::verbs {

absl::StatusOr<std::unique_ptr<NicSet>> NicSet::Open(Verbs* verbs,
                                                     const std::vector<std::string>& names,
                                                     std::optional<uint32_t> gid_index) {
  int count = 0;
  ibv_device** list = verbs->GetDeviceList(&count);
  if (list == nullptr || count == 0) {
    if (list != nullptr) verbs->FreeDeviceList(list);
    return absl::UnavailableError(
        "RDMA is not available: this host has no RDMA device (/sys/class/infiniband is empty); is "
        "the NIC's driver loaded?");
  }
  std::unique_ptr<NicSet> set(new NicSet(verbs, gid_index));
  std::vector<std::string> reasons;
  for (int i = 0; i < count; ++i) {
    absl::StatusOr<std::unique_ptr<Device>> device = Device::Open(verbs, list[i]);
    if (!device.ok()) {
      reasons.emplace_back(device.status().message());
      continue;
    }
    const int events = (*device)->context()->async_fd;
    fcntl(events, F_SETFL, fcntl(events, F_GETFL) | O_NONBLOCK);
    set->devices_.push_back(*std::move(device));
    absl::Status status = set->Add(set->devices_.size() - 1, names, reasons);
    if (!status.ok()) reasons.emplace_back(status.message());
  }
  verbs->FreeDeviceList(list);
  for (const std::string& name : names) {
    const bool found = std::any_of(set->nics_.begin(), set->nics_.end(),
                                   [&](const auto& used) { return used->nic.name() == name; });
    if (!found) {
      return absl::NotFoundError(absl::StrCat("there is no usable RDMA NIC \"", name, "\"",
                                              reasons.empty() ? "" : ": ",
                                              absl::StrJoin(reasons, "; ")));
    }
  }
  if (set->nics_.empty()) {
    return absl::UnavailableError(
        absl::StrCat("RDMA is not available: no port is usable: ", absl::StrJoin(reasons, "; ")));
  }
  // By their order in `names`, else in the list, which is by name.
  const auto place = [&](const std::unique_ptr<UsedNic>& used) {
    return std::find(names.begin(), names.end(), used->nic.name()) - names.begin();
  };
  std::stable_sort(set->nics_.begin(), set->nics_.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });
  for (uint32_t rail = 0; rail < set->nics_.size(); ++rail) set->nics_[rail]->nic.rail = rail;
  return set;
}

absl::Status NicSet::Add(size_t device_index, const std::vector<std::string>& names,
                         std::vector<std::string>& reasons) {
  Device* device = devices_[device_index].get();
  bool used = false;
  for (uint8_t port = 1; port <= device->limits().phys_port_cnt; ++port) {
    const std::string name =
        port == 1 ? device->name() : absl::StrCat(device->name(), ":", static_cast<int>(port));
    if (!names.empty() && std::find(names.begin(), names.end(), name) == names.end()) continue;
    auto nic = std::make_unique<UsedNic>(
        UsedNic{.nic = Nic(&verbs_, device, port, name), .device_index = device_index});
    if (absl::Status status = nic->nic.Refresh(gid_index_); !status.ok()) {
      reasons.emplace_back(status.message());
      continue;
    }
    WAYBILL_ASSIGN_OR_RETURN(nic->queues, CompletionQueues::Create(&verbs_, device));
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
        if (concerned) (void)used->nic.Refresh(gid_index_);
      }
      return;
    default:
      return;
  }
}

}  // namespace waybill::verbs
