#include "core/engine/device_slots.h"

#include <utility>

#include "core/base/status.h"

namespace waybill {

absl::StatusOr<std::unique_ptr<DeviceSlots>> DeviceSlots::Create(Fabric* fabric,
                                                                 std::shared_ptr<Device> device,
                                                                 uint64_t size_bytes) {
  WAYBILL_ASSIGN_OR_RETURN(void* const memory, device->Allocate(size_bytes));
  std::unique_ptr<DeviceSlots> slots(
      new DeviceSlots(fabric, std::move(device), {static_cast<std::byte*>(memory), size_bytes}));
  // Nobody needs the dma-buf once it is registered.
  const ExportedMemory exported =
      slots->device_->Export({MemoryKind::kDevice, slots->bytes_.data(), size_bytes});
  WAYBILL_ASSIGN_OR_RETURN(const Region region,
                           fabric->RegisterSource(exported.span, "staging slots of a GPU"));
  slots->region_ = region.id;
  return slots;
}

DeviceSlots::~DeviceSlots() {
  if (region_ != RegionId::kNone) (void)fabric_.Release(region_);
  device_->Free(bytes_.data());
}

}  // namespace waybill
