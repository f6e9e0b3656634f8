// SPDX-License-Identifier: Apache-2.0

// One GPU: its memory, streams and events, and host memory that it reaches.
//
// A device is used by its primary context, the one that frameworks use too. No call waits for more
// than it says, and none disturbs the caller's current context. A call that the driver refuses
// returns kInternal and says what it was.
#ifndef WAYBILL_CORE_DEVICE_DEVICE_H_
#define WAYBILL_CORE_DEVICE_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/unique_fd.h"
#include "core/device/gpu_survey.h"
#include "core/fabric/fabric.h"
#include "kernels/cuda/driver.h"

struct CUctx_st;
struct CUevent_st;

namespace waybill {

using Stream = kernels::cuda::Stream;
// CUevent in <cuda.h>.
using Event = CUevent_st*;

// Returns why a kernel was not launched, as kInternal, or OK.
absl::Status ToStatus(const kernels::cuda::Outcome& outcome);

// Returns OK if this process can use a GPU, or kUnavailable with what was looked for.
absl::Status FindGpu();

// Returns the number of the device whose memory `size_bytes` bytes at `address` are.
//
// kUnavailable: there is no GPU; kInvalidArgument: they are not one device's memory.
absl::StatusOr<int> FindDevice(const void* address, size_t size_bytes);

// Memory of a device as a network registers it.
struct ExportedMemory {
  MemorySpan span;        // With the descriptor and the offset of its dma-buf, if there is one.
  UniqueFd dmabuf;        // Has to live for as long as the span is registered, also anew.
  absl::Status why_none;  // Why there is no dma-buf.

  // Returns why a network does not take the span, with why there is no dma-buf of it.
  absl::Status Refused(const absl::Status& by_network) const;
};

// Makes a context the thread's current one while the object lives, as calls and launches of kernels
// want it. Meanwhile the thread's calls do not end the capture of a CUDA graph on another thread.
class UsingContext {
 public:
  explicit UsingContext(CUctx_st* context);
  ~UsingContext();
  UsingContext(const UsingContext&) = delete;
  UsingContext& operator=(const UsingContext&) = delete;

  // The CUresult of making it current.
  int result() const { return result_; }

 private:
  int result_;
  int capture_mode_;  // The thread's, before and afterwards.
};

// A CUipcMemHandle of <cuda.h>.
using IpcHandle = std::array<std::byte, 64>;

// Thread-safe.
class Device {
 public:
  // Keeps the device's primary context, and loads the kernels into it. kUnavailable: there is no
  // GPU, or another process has it for itself.
  static absl::StatusOr<std::shared_ptr<Device>> Open(int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }
  CUctx_st* context() const { return context_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  // "0000:3b:00.0", as in /sys/bus/pci/devices; empty if the driver does not say.
  std::string PciAddress() const;

  // Allocates memory of the device. It may wait for the device: do not call it during an update.
  absl::StatusOr<void*> Allocate(size_t size_bytes);
  // Waits for all that is queued on the device, whoever queued it. Null is taken.
  void Free(void* memory);

  // Exports memory of the device, from Allocate() or of a framework, to NICs as a dma-buf. Without
  // one a NIC may still reach it, by the module nvidia-peermem. Whoever registers it has to do so
  // again when other pages are put under its address.
  ExportedMemory Export(const MemorySpan& memory);

  // Returns a number that is another one once other pages are put under these addresses, as by a
  // framework that frees memory and takes it again, or that unmaps it while it sleeps: what was
  // exported before are the old pages then.
  //
  // kFailedPrecondition: not all of it is memory of a device (any more).
  absl::StatusOr<uint64_t> PagesOf(const MemorySpan& memory) const;

  // Names the allocation in which the memory lies to other processes of this host. Returns its
  // handle, and where in it the memory is.
  //
  // kUnimplemented: it was not made by cuMemAlloc(), as in torch's expandable segments; see
  // created_memory.h.
  absl::StatusOr<std::pair<IpcHandle, uint64_t>> HandleOf(const MemorySpan& memory);
  // Maps the allocation of another process, until CloseHandle() of its first byte.
  absl::StatusOr<absl::Span<std::byte>> OpenHandle(const IpcHandle& handle);
  void CloseHandle(void* mapping);

  InboundWrites inbound_writes() const { return inbound_writes_; }
  // Makes what NICs have written so far visible to all devices, if this one is kFlushed. Blocks for
  // some microseconds.
  absl::Status FlushInboundWrites();

  // Lets the device reach host memory at full speed, and copy to and from it without waiting, until
  // Unpin(). It takes as long as Allocate().
  absl::Status Pin(void* memory, size_t size_bytes);
  void Unpin(void* memory);

  // Makes a stream that runs beside all others, the null stream too.
  absl::StatusOr<Stream> MakeStream();
  void DestroyStream(Stream stream);  // Null is taken. What is queued still runs.

  // Queue a copy between any two places, and a fill with zeros.
  absl::Status Copy(void* to, const void* from, size_t size_bytes, Stream stream);
  absl::Status Clear(void* memory, size_t size_bytes, Stream stream);

  // Waits for all that is queued on the stream; other streams go on.
  absl::Status Finish(Stream stream);

  // Calls `then`, once, on a thread of the driver's, when what `event` was last recorded behind is
  // done, or with kInternal when the device has failed; never if neither happens. `then` calls
  // nothing of the driver's. The event may be recorded again, or destroyed, afterwards.
  // kFailedPrecondition: it was recorded in a stream that is being captured into a graph.
  absl::Status After(Event event, std::function<void(absl::Status reached)> then);

 private:
  absl::Status ExportDmabuf(ExportedMemory& exported);

  Device(int ordinal, int handle, std::string name, CUctx_st* context)
      : ordinal_(ordinal), handle_(handle), name_(std::move(name)), context_(context) {}

  const int ordinal_;
  const int handle_;  // CUdevice in <cuda.h>.
  const std::string name_;
  CUctx_st* const context_;
  InboundWrites inbound_writes_ = InboundWrites::kReadBack;
};

// Pins host memory for a device while the object lives. If the driver refuses, copies are slower,
// and wait.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(std::shared_ptr<Device> device, absl::Span<std::byte> memory);
  PinnedMemory(PinnedMemory&& other) noexcept
      : device_(std::move(other.device_)), data_(std::exchange(other.data_, nullptr)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();

 private:
  std::shared_ptr<Device> device_;
  std::byte* data_ = nullptr;  // Null: nothing is pinned.
};

// Opens the device of those spans that are said to be a device's memory; null where none is.
// `name_of` gives the name of a span for errors.
//
// kUnavailable: there is no GPU; kInvalidArgument: it is no device's memory, or that of several.
absl::StatusOr<std::shared_ptr<Device>> OpenDeviceOf(
    absl::Span<const MemorySpan> spans, const std::function<std::string(size_t)>& name_of = {});

}  // namespace waybill

#endif  // WAYBILL_CORE_DEVICE_DEVICE_H_
