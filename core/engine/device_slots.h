// SPDX-License-Identifier: Apache-2.0

// The part of a sender's staging slots that lies in GPU memory, beside the slots on the host.
// Kernels pack chunks into it, and networks that can read GPU memory send from it.
#ifndef WAYBILL_CORE_ENGINE_DEVICE_SLOTS_H_
#define WAYBILL_CORE_ENGINE_DEVICE_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/device/created_memory.h"
#include "core/device/device.h"
#include "core/fabric/fabric.h"

namespace waybill {

class DeviceSlots {
 public:
  // Allocates `size_bytes`, the size of the slots on the host, and registers them with the fabric,
  // which must outlive the slots. If the device supports it, processes in other PID namespaces can
  // open the memory too. Fails if no network can read the memory, or if the device is out of
  // memory.
  static absl::StatusOr<std::unique_ptr<DeviceSlots>> Create(Fabric* fabric,
                                                             std::shared_ptr<Device> device,
                                                             uint64_t size_bytes);
  ~DeviceSlots();
  DeviceSlots(const DeviceSlots&) = delete;
  DeviceSlots& operator=(const DeviceSlots&) = delete;

  RegionId region() const { return region_; }
  absl::Span<std::byte> bytes() const { return bytes_; }

 private:
  DeviceSlots(Fabric* fabric, std::shared_ptr<Device> device, absl::Span<std::byte> bytes,
              MappedParts created)
      : fabric_(*fabric), device_(std::move(device)), created_(std::move(created)), bytes_(bytes) {}
  absl::Status Register();

  Fabric& fabric_;
  const std::shared_ptr<Device> device_;
  const MappedParts created_;  // Empty if the memory was allocated.
  const absl::Span<std::byte> bytes_;
  RegionId region_ = RegionId::kNone;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_DEVICE_SLOTS_H_
