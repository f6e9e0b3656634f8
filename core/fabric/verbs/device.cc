// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/device.h"

#include <arpa/inet.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace waybill::verbs {
namespace {

constexpr uint16_t kFullMember = 0x8000;        // In a partition key.
constexpr uint32_t kSoftwareVendor = 0xFFFFFF;  // The vendor of rxe.

absl::Status DeviceError(absl::string_view operation, absl::string_view device, int error) {
  return absl::UnavailableError(absl::StrCat(operation, " of RDMA device ", device, ": ",
                                             std::strerror(error), " (errno ", error, ")"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::Open(Verbs* verbs, ibv_device* device) {
  std::unique_ptr<Device> opened(new Device(verbs, verbs->GetDeviceName(device)));
  opened->context_ = verbs->OpenDevice(device);
  if (opened->context_ == nullptr) return DeviceError("ibv_open_device", opened->name_, errno);
  if (const int error = verbs->QueryDevice(opened->context_, &opened->limits_); error != 0) {
    return DeviceError("ibv_query_device", opened->name_, error);
  }
  opened->pd_ = verbs->AllocPd(opened->context_);
  if (opened->pd_ == nullptr) return DeviceError("ibv_alloc_pd", opened->name_, errno);
  return opened;
}

Device::~Device() {
  if (pd_ != nullptr) verbs_.DeallocPd(pd_);
  if (context_ != nullptr) verbs_.CloseDevice(context_);
}

absl::Status Device::CheckCarriesLanes() {
  if (context_->device->transport_type == IBV_TRANSPORT_IWARP) {
    return absl::UnavailableError(absl::StrCat(
        name_,
        " is an iWARP device: lanes need InfiniBand or RoCE; if it has a RoCE mode (E810: "
        "devlink parameter enable_roce), turn it on"));
  }
  ibv_cq* const queue = verbs_.CreateCq(context_, 1, nullptr);
  // A lack of room may pass. A lane that finds none says so.
  if (queue == nullptr && errno == ENOMEM) return absl::OkStatus();
  if (queue == nullptr) return DeviceError("ibv_create_cq", name_, errno);
  ibv_qp_init_attr attributes{};
  attributes.send_cq = queue;
  attributes.recv_cq = queue;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1};
  ibv_qp* const trial = verbs_.CreateQp(pd_, &attributes);
  const int error = errno;
  if (trial != nullptr) verbs_.DestroyQp(trial);
  verbs_.DestroyCq(queue);
  if (trial != nullptr) return absl::OkStatus();
  if (error == ENOMEM) return absl::OkStatus();
  const absl::Status status = DeviceError("ibv_create_qp", name_, error);
  return absl::UnavailableError(
      absl::StrCat(status.message(),
                   "; it has no reliable connections (as EFA), and lanes need InfiniBand or RoCE"));
}

bool Device::is_software() const { return limits_.vendor_id == kSoftwareVendor; }

uint64_t LinkBytesPerSecond(uint8_t width, uint32_t speed) {
  const uint64_t lanes = width == 1    ? 1
                         : width == 2  ? 4
                         : width == 4  ? 8
                         : width == 8  ? 12
                         : width == 16 ? 2
                                       : 0;
  // Payload after line coding: 8b/10b up to QDR, 64b/66b from FDR10 on.
  const uint64_t megabits = speed == 1     ? 2'000
                            : speed == 2   ? 4'000
                            : speed == 4   ? 8'000
                            : speed == 8   ? 10'000
                            : speed == 16  ? 13'640
                            : speed == 32  ? 25'000
                            : speed == 64  ? 50'000
                            : speed == 128 ? 100'000
                            : speed == 256 ? 200'000
                                           : 0;
  return lanes * megabits * 1'000'000 / 8;
}

std::string Device::WhatIsFull() const {
  rlimit limit{};
  (void)getrlimit(RLIMIT_MEMLOCK, &limit);
  std::string device =
      absl::StrCat("the device has at most ", limits_.max_qp, " queue pairs, ", limits_.max_cq,
                   " completion queues and ", limits_.max_mr, " memory regions");
  if (limit.rlim_cur == RLIM_INFINITY) return device;
  // Some drivers, as that of mlx5, lock the memory of queues, too.
  return absl::StrCat(
      "the limit on locked memory (ulimit -l), which queues count towards as well, is ",
      limit.rlim_cur >> 10, " KiB; ", device);
}

std::string PortName(absl::string_view device, uint32_t port) {
  return port == 1 ? std::string(device) : absl::StrCat(device, ":", port);
}

absl::Status Nic::Refresh(std::optional<uint32_t> forced_gid) {
  status = absl::OkStatus();
  if (const int error = verbs_.QueryPort(device_.context(), port_, &attributes_); error != 0) {
    return status = DeviceError(absl::StrCat("ibv_query_port ", port_), device_.name(), error);
  }
  if (attributes_.state != IBV_PORT_ACTIVE) {
    return status = absl::UnavailableError(
               absl::StrCat("port ", port_, " of ", device_.name(), " is not active: ",
                            is_ethernet() ? "is its network interface up, and its cable in?"
                                          : "is its cable in, and does a subnet manager run?"));
  }
  __be16 partition = 0;
  const bool is_limited = !is_ethernet() &&
                          verbs_.QueryPkey(device_.context(), port_, 0, &partition) == 0 &&
                          (ntohs(partition) & kFullMember) == 0;
  if (is_limited) {
    return status = absl::UnavailableError(absl::StrCat(
               "port ", port_, " of ", device_.name(), " is a limited member of its partition (",
               absl::Hex(ntohs(partition), absl::kZeroPad4),
               " at index 0), and limited members do not reach each other: the subnet manager has "
               "to make it a full member"));
  }
  absl::StatusOr<GidChoice> gid = ChooseGid(ReadGids(), forced_gid);
  if (!gid.ok()) {
    return status = absl::UnavailableError(
               absl::StrCat("port ", port_, " of ", device_.name(), ": ", gid.status().message()));
  }
  gid_ = *std::move(gid);
  return status;
}

std::vector<GidEntry> Nic::ReadGids() const {
  std::vector<GidEntry> gids;
  for (uint32_t i = 0; i < static_cast<uint32_t>(std::max(attributes_.gid_tbl_len, 0)); ++i) {
    ibv_gid_entry read{};
    if (verbs_.QueryGid(device_.context(), port_, i, &read) != 0) continue;
    GidEntry entry{.index = i,
                   .kind = read.gid_type == IBV_GID_TYPE_ROCE_V2   ? GidKind::kRoceV2
                           : read.gid_type == IBV_GID_TYPE_ROCE_V1 ? GidKind::kRoceV1
                                                                   : GidKind::kInfiniBand};
    std::memcpy(entry.gid.data(), read.gid.raw, entry.gid.size());
    entry.is_foreign = !verbs_.IsOwnGid(read);
    if (entry.gid != Gid{}) gids.push_back(entry);
  }
  return gids;
}

std::string Nic::Describe() const {
  return absl::StrCat(device_.name(), " port ", port_, ", ", Name(gid_.entry.kind), " ",
                      ToString(gid_.entry.gid), " (GID ", gid_.entry.index, ": ", gid_.reason,
                      "), MTU ", 128 << attributes_.active_mtu, ", ",
                      bytes_per_second() * 8 / 1'000'000'000, " Gbit/s");
}

uint32_t Nic::numa_node() const {
  std::ifstream file(absl::StrCat("/sys/class/infiniband/", device_.name(), "/device/numa_node"));
  int node = 0;
  return file >> node && node > 0 ? static_cast<uint32_t>(node) : 0;
}

uint64_t Nic::bytes_per_second() const {
  return LinkBytesPerSecond(attributes_.active_width, attributes_.active_speed);
}

}  // namespace waybill::verbs
