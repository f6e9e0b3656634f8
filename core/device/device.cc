// SPDX-License-Identifier: Apache-2.0

#include "core/device/device.h"

#include <cuda.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/device/driver_calls.h"
#include "core/device/gpu_survey.h"

namespace waybill {
namespace {

// Returns which device's memory is there, or in a failure's message what is there instead.
absl::StatusOr<int> OrdinalAt(CUdeviceptr address) {
  uint64_t kind = 0, ordinal_bits = 0, managed = 0;
  if (GetPointerAttribute(kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS) {
    return absl::InvalidArgumentError(
        "the driver does not know it; give it as host memory, or allocate it with cudaMalloc()");
  }
  WAYBILL_RETURN_IF_ERROR(
      Check("cuPointerGetAttribute",
            GetPointerAttribute(ordinal_bits, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)));
  const auto ordinal = static_cast<int>(static_cast<uint32_t>(ordinal_bits));
  (void)GetPointerAttribute(managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
  if (managed != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it is managed memory of ", NameOfGpu(ordinal),
        ", whose pages move between the host and GPUs; allocate it with cudaMalloc()"));
  }
  if (kind != CU_MEMORYTYPE_DEVICE) {
    return absl::InvalidArgumentError(absl::StrCat("it is host memory, pinned for ",
                                                   NameOfGpu(ordinal), "; give it as host memory"));
  }
  return ordinal;
}

struct Waiting {
  std::string what;
  std::function<void(absl::Status reached)> then;
};

// The driver may not be asked here what the result is called.
void CUDA_CB CallAndDelete(CUstream, CUresult result, void* waiting) {
  const std::unique_ptr<Waiting> owned(static_cast<Waiting*>(waiting));
  if (result == CUDA_SUCCESS) return owned->then(absl::OkStatus());
  owned->then(absl::InternalError(absl::StrCat(
      owned->what, ": error ", static_cast<int>(result),
      " of its driver; what ran there has failed, and the process has to be started again")));
}

}  // namespace

UsingContext::UsingContext(CUctx_st* context) {
  auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  Driver()->cuThreadExchangeStreamCaptureMode_fn(&mode);
  capture_mode_ = mode;
  result_ = Driver()->cuCtxPushCurrent_fn(context);
}

UsingContext::~UsingContext() {
  CUcontext popped = nullptr;
  if (result_ == CUDA_SUCCESS) Driver()->cuCtxPopCurrent_fn(&popped);
  auto mode = static_cast<CUstreamCaptureMode>(capture_mode_);
  Driver()->cuThreadExchangeStreamCaptureMode_fn(&mode);
}

absl::StatusOr<int> FindDevice(const void* address, size_t size_bytes) {
  WAYBILL_RETURN_IF_ERROR(FindGpu());
  const CUdeviceptr first = AddressOf(address);
  absl::StatusOr<int> ordinal = OrdinalAt(first);
  if (ordinal.ok()) {
    const absl::StatusOr<int> last = OrdinalAt(first + (size_bytes == 0 ? 0 : size_bytes - 1));
    if (!last.ok()) {
      ordinal = last.status();
    } else if (*last != *ordinal) {
      ordinal = absl::InvalidArgumentError(
          absl::StrCat("it begins on ", NameOfGpu(*ordinal), ", and ends on ", NameOfGpu(*last)));
    }
  }
  if (ordinal.ok()) return ordinal;
  return absl::InvalidArgumentError(
      absl::StrCat("no memory of a GPU: ", ordinal.status().message()));
}

absl::StatusOr<std::shared_ptr<Device>> Device::Open(int ordinal) {
  WAYBILL_RETURN_IF_ERROR(FindGpu());
  const std::string what = absl::StrCat("open GPU ", ordinal);
  int count = 0;
  WAYBILL_RETURN_IF_ERROR(Check(what, Driver()->cuDeviceGetCount_fn(&count)));
  if (ordinal < 0 || ordinal >= count) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": this process sees ", count, " GPUs, from 0 on; CUDA_VISIBLE_DEVICES says which"));
  }
  CUdevice number = 0;
  char name[128] = {};
  CUcontext context = nullptr;
  CUresult result = Driver()->cuDeviceGet_fn(&number, ordinal);
  if (result == CUDA_SUCCESS) result = Driver()->cuDeviceGetName_fn(name, sizeof(name), number);
  if (result == CUDA_SUCCESS) result = Driver()->cuDevicePrimaryCtxRetain_fn(&context, number);
  if (result == CUDA_ERROR_DEVICE_UNAVAILABLE) {
    return absl::UnavailableError(absl::StrCat(
        Check(what, result).message(),
        ": another process has it in exclusive mode; end that process, or run \"nvidia-smi -c "
        "DEFAULT\""));
  }
  WAYBILL_RETURN_IF_ERROR(Check(what, result));
  std::shared_ptr<Device> device(new Device(ordinal, number, name, context));
  device->inbound_writes_ = InboundWritesOf(ordinal);
  const UsingContext current(context);
  WAYBILL_RETURN_IF_ERROR(Check(what, static_cast<CUresult>(current.result())));
  WAYBILL_RETURN_IF_ERROR(ToStatus(kernels::cuda::PrepareContext()));
  return device;
}

Device::~Device() { Driver()->cuDevicePrimaryCtxRelease_fn(handle_); }

std::string Device::PciAddress() const {
  char text[32] = {};
  if (Driver()->cuDeviceGetPCIBusId_fn(text, sizeof(text), handle_) != CUDA_SUCCESS) return "";
  return absl::AsciiStrToLower(text);
}

absl::StatusOr<void*> Device::Allocate(size_t size_bytes) {
  CUdeviceptr address = 0;
  WAYBILL_RETURN_IF_ERROR(
      CallIn(context_, absl::StrCat("allocate ", size_bytes, " bytes on ", NameOfGpu(ordinal_)),
             [&] { return Driver()->cuMemAlloc_fn(&address, size_bytes); }));
  return std::bit_cast<void*>(address);
}

void Device::Free(void* memory) {
  if (memory == nullptr) return;
  (void)CallIn(context_, "free", [&] { return Driver()->cuMemFree_fn(AddressOf(memory)); });
}

absl::Status ExportedMemory::Refused(const absl::Status& by_network) const {
  if (why_none.ok()) return by_network;
  return absl::FailedPreconditionError(
      absl::StrCat(by_network.message(), ", and ", why_none.message()));
}

ExportedMemory Device::Export(const MemorySpan& memory) {
  ExportedMemory exported{.span = memory, .dmabuf = {}, .why_none = {}};
  exported.why_none = ExportDmabuf(exported);
  return exported;
}

absl::Status Device::ExportDmabuf(ExportedMemory& exported) {
  MemorySpan& span = exported.span;
  const std::string what =
      absl::StrCat("export ", span.size_bytes, " bytes of ", NameOfGpu(ordinal_), " as a dma-buf");
  int exports_dmabuf = 0;  // Stays 0 if the driver does not know the attribute.
  (void)Driver()->cuDeviceGetAttribute_fn(&exports_dmabuf, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
                                          handle_);
  if (exports_dmabuf == 0) {
    return absl::UnimplementedError(
        absl::StrCat(what, ": its driver does not (the open kernel modules do)"));
  }
  // The driver takes whole pages of the host. Not the allocation that the memory lies in: a
  // framework may have mapped many under one range of addresses.
  const auto page = static_cast<CUdeviceptr>(sysconf(_SC_PAGESIZE));
  const CUdeviceptr begin = AddressOf(span.data) / page * page;
  const CUdeviceptr end = (AddressOf(span.data) + span.size_bytes + page - 1) / page * page;
  int fd = -1;
  WAYBILL_RETURN_IF_ERROR(CallIn(context_, what, [&] {
    return Driver()->cuMemGetHandleForAddressRange_fn(
        &fd, begin, end - begin, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, /*flags=*/0);
  }));
  exported.dmabuf = UniqueFd(fd);
  span.dmabuf_fd = fd;
  span.dmabuf_offset_bytes = AddressOf(span.data) - begin;
  return absl::OkStatus();
}

absl::StatusOr<std::pair<IpcHandle, uint64_t>> Device::HandleOf(const MemorySpan& memory) {
  uint64_t capable = 0;
  CUdeviceptr base = 0;
  size_t size_bytes = 0;
  CUipcMemHandle handle = {};
  WAYBILL_RETURN_IF_ERROR(CallIn(context_, "name memory to other processes", [&] {
    CUresult result = GetPointerAttribute(capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                          AddressOf(memory.data));
    if (result != CUDA_SUCCESS || capable == 0) return result;
    result = Driver()->cuMemGetAddressRange_fn(&base, &size_bytes, AddressOf(memory.data));
    return result == CUDA_SUCCESS ? Driver()->cuIpcGetMemHandle_fn(&handle, base) : result;
  }));
  const uint64_t offset_bytes = AddressOf(memory.data) - base;
  if (capable == 0 || memory.size_bytes > size_bytes - offset_bytes) {
    return absl::UnimplementedError("it is no memory of one cuMemAlloc()");
  }
  return std::pair(std::bit_cast<IpcHandle>(handle), offset_bytes);
}

absl::StatusOr<absl::Span<std::byte>> Device::OpenHandle(const IpcHandle& handle) {
  CUdeviceptr mapping = 0, base = 0;
  size_t size_bytes = 0;
  WAYBILL_RETURN_IF_ERROR(CallIn(context_, "open memory of another process", [&] {
    const CUresult result = Driver()->cuIpcOpenMemHandle_fn(
        &mapping, std::bit_cast<CUipcMemHandle>(handle), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS) return result;
    return Driver()->cuMemGetAddressRange_fn(&base, &size_bytes, mapping);
  }));
  // Allocations below 2 MiB share a block, and the range is then the block's.
  return absl::Span<std::byte>(std::bit_cast<std::byte*>(mapping), base + size_bytes - mapping);
}

void Device::CloseHandle(void* mapping) {
  (void)CallIn(context_, "close",
               [&] { return Driver()->cuIpcCloseMemHandle_fn(AddressOf(mapping)); });
}

absl::StatusOr<uint64_t> Device::PagesOf(const MemorySpan& memory) const {
  const CUdeviceptr begin = AddressOf(memory.data), end = begin + memory.size_bytes;
  const UsingContext current(context_);  // For the range, not for the attribute.
  size_t pages = 0;
  // An allocation is what was mapped at a time: with torch's expandable segments, 2 or 20 MiB.
  for (CUdeviceptr at = begin; at < end;) {
    CUdeviceptr base = 0;
    size_t size_bytes = 0;
    uint64_t id = 0;
    CUresult result = Driver()->cuMemGetAddressRange_fn(&base, &size_bytes, at);
    if (result == CUDA_SUCCESS) {
      result = GetPointerAttribute(id, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, at);
    }
    // No driver documents of which kinds of memory it knows the block.
    if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_INVALID_VALUE) {
      result = GetPointerAttribute(id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
    }
    if (result != CUDA_SUCCESS || base + size_bytes <= at) {
      return absl::FailedPreconditionError(kernels::cuda::Explain(
          *Driver(),
          absl::StrCat("byte ", at - begin, " of ", memory.size_bytes,
                       " is no memory of a GPU any more; keep it, or join again with what took "
                       "its place"),
          result));
    }
    pages = absl::HashOf(pages, id, base, size_bytes);
    at = base + size_bytes;
  }
  return pages;
}

absl::Status Device::FlushInboundWrites() {
  return CallIn(context_, "flush what NICs have written", [] {
    return Driver()->cuFlushGPUDirectRDMAWrites_fn(
        CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
        CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);
  });
}

absl::Status Device::Pin(void* memory, size_t size_bytes) {
  return CallIn(context_, absl::StrCat("pin ", size_bytes, " bytes"), [&] {
    return Driver()->cuMemHostRegister_fn(memory, size_bytes, CU_MEMHOSTREGISTER_PORTABLE);
  });
}

void Device::Unpin(void* memory) {
  (void)CallIn(context_, "unpin", [&] { return Driver()->cuMemHostUnregister_fn(memory); });
}

absl::StatusOr<Stream> Device::MakeStream() {
  Stream stream = nullptr;
  WAYBILL_RETURN_IF_ERROR(CallIn(context_, "make a stream", [&] {
    return Driver()->cuStreamCreate_fn(&stream, CU_STREAM_NON_BLOCKING);
  }));
  return stream;
}

void Device::DestroyStream(Stream stream) {
  if (stream == nullptr) return;
  (void)CallIn(context_, "destroy", [&] { return Driver()->cuStreamDestroy_fn(stream); });
}

absl::Status Device::Copy(void* to, const void* from, size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return absl::OkStatus();
  return CallIn(context_, "copy", [&] {
    return Driver()->cuMemcpyAsync_fn(AddressOf(to), AddressOf(from), size_bytes, stream);
  });
}

absl::Status Device::Clear(void* memory, size_t size_bytes, Stream stream) {
  if (size_bytes == 0) return absl::OkStatus();
  return CallIn(context_, "clear", [&] {
    return Driver()->cuMemsetD8Async_fn(AddressOf(memory), 0, size_bytes, stream);
  });
}

absl::Status Device::Finish(Stream stream) {
  return CallIn(context_, "finish", [&] { return Driver()->cuStreamSynchronize_fn(stream); });
}

absl::Status Device::After(Event event, std::function<void(absl::Status reached)> then) {
  const std::string what = absl::StrCat("wait for an event on ", NameOfGpu(ordinal_));
  const UsingContext current(context_);
  // A stream that waits for a captured event is captured too, and runs nothing.
  const CUresult state = Driver()->cuEventQuery_fn(event);
  if (state == CUDA_ERROR_CAPTURED_EVENT) {
    return absl::FailedPreconditionError(absl::StrCat(
        what,
        ": it was recorded in a stream that is being captured into a CUDA graph, where "
        "nothing runs; end the capture, launch the graph, and record an event behind "
        "it"));
  }
  if (state != CUDA_ERROR_NOT_READY) WAYBILL_RETURN_IF_ERROR(Check(what, state));
  Stream stream = nullptr;
  CUresult result = Driver()->cuStreamCreate_fn(&stream, CU_STREAM_NON_BLOCKING);
  if (result != CUDA_SUCCESS) return Check(what, result);
  auto owned = std::make_unique<Waiting>(what, std::move(then));
  result = Driver()->cuStreamWaitEvent_fn(stream, event, CU_EVENT_WAIT_DEFAULT);
  if (result == CUDA_SUCCESS) {
    // Functions of cuLaunchHostFunc() are not called any more after an error.
    result = Driver()->cuStreamAddCallback_fn(stream, CallAndDelete, owned.get(), /*flags=*/0);
  }
  if (result == CUDA_SUCCESS) (void)owned.release();
  // It goes when what is queued has run.
  Driver()->cuStreamDestroy_fn(stream);
  return Check(what, result);
}

}  // namespace waybill
