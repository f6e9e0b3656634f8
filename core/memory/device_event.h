// A CUDA event of the caller's, to be waited for without stopping a device.
#ifndef WAYBILL_CORE_MEMORY_DEVICE_EVENT_H_
#define WAYBILL_CORE_MEMORY_DEVICE_EVENT_H_

#include <memory>
#include <stop_token>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/cuda/device.h"

namespace waybill {

class DeviceEvent {
 public:
  // What `event` was last recorded behind; it may be recorded again, or destroyed, afterwards.
  //
  // kInvalidArgument: the driver does not take it; says why.
  static absl::StatusOr<std::shared_ptr<DeviceEvent>> Take(
      std::shared_ptr<kernels::cuda::Device> device, kernels::cuda::Event event);

  // Returns when all of that is done. kDeadlineExceeded; kCancelled: `cancel` was requested.
  absl::Status Await(absl::Time deadline, const std::stop_token& cancel) const;

 private:
  struct Latch;
  explicit DeviceEvent(std::shared_ptr<kernels::cuda::Device> device);

  const std::shared_ptr<kernels::cuda::Device> device_;
  const std::shared_ptr<Latch> latch_;  // The driver's too, until it has called.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_MEMORY_DEVICE_EVENT_H_
