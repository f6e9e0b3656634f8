// What stands in for device.cc in a build without a CUDA compiler: no device is ever found.

#include <cstdlib>

#include "kernels/cuda/device.h"

namespace waybill::kernels::cuda {

Outcome FindDevice(const void*, size_t, int&) { return FindGpu(); }
Outcome Device::Open(int, std::shared_ptr<Device>&) { return FindGpu(); }

// There is no object to call these on.
Device::~Device() { std::abort(); }
Outcome Device::Allocate(size_t, void*&) { std::abort(); }
void Device::Free(void*) { std::abort(); }
Outcome Device::Pin(void*, size_t) { std::abort(); }
void Device::Unpin(void*) { std::abort(); }
Outcome Device::MakeStream(Stream&) { std::abort(); }
void Device::DestroyStream(Stream) { std::abort(); }
Outcome Device::Copy(void*, const void*, size_t, Stream) { std::abort(); }
Outcome Device::Clear(void*, size_t, Stream) { std::abort(); }
Outcome Device::Finish(Stream) { std::abort(); }
Outcome Device::After(Event, std::function<void()>) { std::abort(); }

}  // namespace waybill::kernels::cuda
