// SPDX-License-Identifier: Apache-2.0

// Registers memory of a receiver's GPU for the network to write to.
#ifndef WAYBILL_CORE_ENGINE_DEVICE_TARGETS_H_
#define WAYBILL_CORE_ENGINE_DEVICE_TARGETS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"
#include "core/device/device.h"
#include "core/fabric/fabric.h"

namespace waybill {

// The registrations of one buffer. A registration refers to pages, not addresses. If an address
// range is mapped to new pages, as by an inference engine that sleeps and wakes up, the network
// keeps writing to the old pages until Renew().
class DeviceTargets {
 public:
  DeviceTargets(Fabric* fabric, std::shared_ptr<Device> device)
      : fabric_(*fabric), device_(std::move(device)) {}
  DeviceTargets(const DeviceTargets&) = delete;
  DeviceTargets& operator=(const DeviceTargets&) = delete;
  ~DeviceTargets() { Release(); }

  // Registers memory of the device. `name` appears in errors.
  //
  // An error names every obstacle, in the driver and in the network. The caller keeps the memory
  // until Release() or the destructor.
  absl::StatusOr<RegionId> Add(const MemorySpan& memory, std::string name);

  // Returns true if Renew() is needed. kFailedPrecondition: some of the memory is no longer mapped.
  absl::StatusOr<bool> HaveMoved() const;
  // Registers memory that has moved or was released again, and calls `changed` for each region
  // whose id changes.
  absl::Status Renew(const std::function<void(RegionId old_region, RegionId new_region)>& changed);

  // Ends the registrations, which frees the pages. The network cannot reach the memory until
  // Renew().
  void Release();
  bool reachable() const { return reachable_; }

 private:
  struct Target {
    std::string name;
    MemorySpan memory;
    RegionId region = RegionId::kNone;
    uint64_t pages = 0;  // The value of Device::PagesOf() at registration.
    UniqueFd dmabuf;     // Kept because the fabric registers it again in a renewal.
    bool registered = false;
  };

  absl::Status Register(Target& target);

  Fabric& fabric_;
  const std::shared_ptr<Device> device_;
  std::vector<Target> targets_;
  bool reachable_ = true;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_DEVICE_TARGETS_H_
