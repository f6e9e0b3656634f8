// SPDX-License-Identifier: Apache-2.0

#include "core/engine/device_slots.h"

#include <utility>

#include "core/base/status.h"

namespace waybill {

absl::StatusOr<std::unique_ptr<DeviceSlots>> DeviceSlots::Create(Fabric* fabric,
                                                                 std::shared_ptr<Device> device,
                                                                 uint64_t size_bytes) {
  if (absl::StatusOr<MappedParts> created = CreateForOthers(device, size_bytes); created.ok()) {
    const absl::Span<std::byte> bytes = created->bytes().first(size_bytes);
    std::unique_ptr<DeviceSlots> slots(new DeviceSlots(fabric, device, bytes, *std::move(created)));
    if (slots->Register().ok()) return slots;
  }
  WAYBILL_ASSIGN_OR_RETURN(void* const memory, device->Allocate(size_bytes));
  std::unique_ptr<DeviceSlots> slots(new DeviceSlots(
      fabric, std::move(device), {static_cast<std::byte*>(memory), size_bytes}, MappedParts()));
  WAYBILL_RETURN_IF_ERROR(slots->Register());
  return slots;
}

absl::Status DeviceSlots::Register() {
  // The dma-buf is not needed once it is registered.
  const ExportedMemory exported =
      device_->Export({MemoryKind::kDevice, bytes_.data(), bytes_.size()});
  const absl::StatusOr<Region> region =
      fabric_.RegisterSource(exported.span, "staging slots of a GPU");
  if (!region.ok()) return exported.Refused(region.status());
  region_ = region->id;
  return absl::OkStatus();
}

DeviceSlots::~DeviceSlots() {
  if (region_ != RegionId::kNone) (void)fabric_.Release(region_);
  if (created_.bytes().empty()) device_->Free(bytes_.data());
}

}  // namespace waybill
