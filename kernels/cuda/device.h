// One GPU's memory, streams and events, as far as whoever runs this package's kernels needs them.
//
// A device is used by its primary context, the one that frameworks use too. No call waits for more
// than it says, and none disturbs the caller's current context.

#ifndef KERNELS_CUDA_DEVICE_H_
#define KERNELS_CUDA_DEVICE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/driver.h"

struct CUctx_st;
struct CUevent_st;

namespace waybill::kernels::cuda {

// What <cuda.h> calls CUevent.
using Event = CUevent_st*;

// Which device's memory `size_bytes` bytes at `address` are. Fails where they are not one device's,
// or there is no GPU.
Outcome FindDevice(const void* address, size_t size_bytes, int& ordinal);

// Thread-safe.
class Device {
 public:
  // Keeps the device's primary context, and loads this package's kernels into it.
  static Outcome Open(int ordinal, std::shared_ptr<Device>& device);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"

  // Memory of the device's. May wait for the device: not while an update runs.
  Outcome Allocate(size_t size_bytes, void*& memory);
  void Free(void* memory);  // Null is taken.

  // Host memory that the device reaches at full speed, and copies to and from without waiting,
  // until Unpin(). As slow as Allocate().
  Outcome Pin(void* memory, size_t size_bytes);
  void Unpin(void* memory);

  // Runs beside all others, the null stream too.
  Outcome MakeStream(Stream& stream);
  void DestroyStream(Stream stream);  // Null is taken. What is queued still runs.

  // Queue a copy between any two places, and a fill with zeros.
  Outcome Copy(void* to, const void* from, size_t size_bytes, Stream stream);
  Outcome Clear(void* memory, size_t size_bytes, Stream stream);

  // Waits for all that is queued on the stream; other streams go on.
  Outcome Finish(Stream stream);

  // Calls `then`, once, on a thread of the driver's, when what `event` was last recorded behind is
  // done; never if that never is. `then` calls nothing of the driver's. The event may be recorded
  // again, or destroyed, afterwards.
  Outcome After(Event event, std::function<void()> then);

 private:
  Device(int ordinal, int handle, std::string name, CUctx_st* context)
      : ordinal_(ordinal), handle_(handle), name_(std::move(name)), context_(context) {}

  const int ordinal_;
  const int handle_;  // What <cuda.h> calls CUdevice.
  const std::string name_;
  CUctx_st* const context_;
};

}  // namespace waybill::kernels::cuda

#endif  // KERNELS_CUDA_DEVICE_H_
