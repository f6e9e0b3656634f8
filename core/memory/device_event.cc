#include "core/memory/device_event.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

namespace waybill {

struct DeviceEvent::Latch {
  std::mutex mutex;
  std::condition_variable_any changed;
  bool passed = false;
};

DeviceEvent::DeviceEvent(std::shared_ptr<kernels::cuda::Device> device)
    : device_(std::move(device)), latch_(std::make_shared<Latch>()) {}

absl::StatusOr<std::shared_ptr<DeviceEvent>> DeviceEvent::Take(
    std::shared_ptr<kernels::cuda::Device> device, kernels::cuda::Event event) {
  std::shared_ptr<DeviceEvent> taken(new DeviceEvent(std::move(device)));
  const auto queued = taken->device_->After(event, [latch = taken->latch_] {
    const std::lock_guard lock(latch->mutex);
    latch->passed = true;
    latch->changed.notify_all();
  });
  if (!queued.ok()) return absl::InvalidArgumentError(queued.reason());
  return taken;
}

absl::Status DeviceEvent::Await(absl::Time deadline, const std::stop_token& cancel) const {
  std::unique_lock lock(latch_->mutex);
  const bool passed = latch_->changed.wait_until(lock, cancel, absl::ToChronoTime(deadline),
                                                 [this] { return latch_->passed; });
  if (passed) return absl::OkStatus();
  if (cancel.stop_requested())
    return absl::CancelledError("cancelled before its event was reached");
  return absl::DeadlineExceededError(
      absl::StrCat("GPU ", device_->ordinal(), " has not reached its event"));
}

}  // namespace waybill
