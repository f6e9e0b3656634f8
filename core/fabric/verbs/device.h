// SPDX-License-Identifier: Apache-2.0

// One opened RDMA device, and its ports as NICs: what they are, and which GID is used.
#ifndef WAYBILL_CORE_FABRIC_VERBS_DEVICE_H_
#define WAYBILL_CORE_FABRIC_VERBS_DEVICE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/verbs/gid_choice.h"
#include "core/fabric/verbs/verbs.h"

namespace waybill::verbs {

class Device {
 public:
  // kUnavailable, naming the device: it cannot be opened.
  static absl::StatusOr<std::unique_ptr<Device>> Open(Verbs* verbs, ibv_device* device);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Makes a queue pair on trial, as lanes have it. kUnavailable: the device cannot carry lanes, and
  // why.
  absl::Status CheckCarriesLanes();

  const std::string& name() const { return name_; }
  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }
  const ibv_device_attr& limits() const { return limits_; }
  // Its driver gave it up: no call on it succeeds any more.
  bool failed() const { return failed_; }
  void MarkFailed() { failed_ = true; }
  // Says of a call that has failed with ENOMEM what may be full: the device, or the limit on locked
  // memory.
  std::string WhatIsFull() const;
  // Emulated by the host's kernel: its timers need more patience than a NIC's.
  bool is_software() const;

 private:
  Device(Verbs* verbs, std::string name) : verbs_(*verbs), name_(std::move(name)) {}

  Verbs& verbs_;
  const std::string name_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_device_attr limits_ = {};
  bool failed_ = false;
};

// Bytes a second on the wire, of a port's active width and speed; 0 where they are not known.
// Source: the InfiniBand architecture specification, PortInfo's LinkWidthActive and
// LinkSpeedActive.
uint64_t LinkBytesPerSecond(uint8_t width, uint32_t speed);

// The names of a device's ports: "mlx5_0"; "mlx5_0:2" of the second one.
std::string PortName(absl::string_view device, uint32_t port);

// A port of a device: what a lane is bound to.
class Nic {
 public:
  Nic(Verbs* verbs, Device* device, uint8_t port)
      : verbs_(*verbs), device_(*device), port_(port), name_(PortName(device->name(), port)) {}

  // Reads the port and its GIDs, and chooses. Not OK, with the remedy: it cannot be used now.
  absl::Status Refresh(std::optional<uint32_t> forced_gid);

  const std::string& name() const { return name_; }
  Device& device() const { return device_; }
  uint8_t port() const { return port_; }
  const ibv_port_attr& attributes() const { return attributes_; }
  const GidChoice& gid() const { return gid_; }
  std::vector<GidEntry> ReadGids() const;
  bool is_ethernet() const { return attributes_.link_layer == IBV_LINK_LAYER_ETHERNET; }
  // "mlx5_0 port 1, RoCE v2 10.0.0.1 (GID 3: RoCE v2 with an IPv4 address), MTU 4096, 100 Gbit/s".
  std::string Describe() const;
  uint32_t numa_node() const;
  uint64_t bytes_per_second() const;

  // Not OK: the port is down, or the device failed; no lane uses it until it is active again.
  absl::Status status;
  uint32_t rail = 0;

 private:
  Verbs& verbs_;
  Device& device_;
  const uint8_t port_;
  const std::string name_;
  ibv_port_attr attributes_ = {};
  GidChoice gid_;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_DEVICE_H_
