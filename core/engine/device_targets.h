// SPDX-License-Identifier: Apache-2.0

// Memory of a receiver's GPU that the network writes to.
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

// The registrations of one buffer. A registration holds pages, not addresses: where other pages are
// put under an address, as by an engine that sleeps and wakes, the network writes to the old ones.
class DeviceTargets {
 public:
  DeviceTargets(Fabric* fabric, std::shared_ptr<Device> device)
      : fabric_(*fabric), device_(std::move(device)) {}
  DeviceTargets(const DeviceTargets&) = delete;
  DeviceTargets& operator=(const DeviceTargets&) = delete;
  ~DeviceTargets() { Release(); }

  // Registers memory of the device. `name` is for errors.
  //
  // An error names everything that prevents it, in the driver and in the network. The caller keeps
  // the memory until Release() or the destructor.
  absl::StatusOr<RegionId> Add(const MemorySpan& memory, std::string name);

  // Returns true if Renew() is needed. kFailedPrecondition: some of it is no memory any more.
  absl::StatusOr<bool> HaveMoved() const;
  // Registers again what has moved or was released, and tells each change of a region.
  absl::Status Renew(const std::function<void(RegionId old_region, RegionId new_region)>& changed);

  // Gives the pages back: the network does not reach them until Renew().
  void Release();
  bool reachable() const { return reachable_; }

 private:
  struct Target {
    std::string name;
    MemorySpan memory;
    RegionId region = RegionId::kNone;
    uint64_t pages = 0;  // As Device::PagesOf() has them.
    UniqueFd dmabuf;     // A renewal by the fabric registers it again.
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
