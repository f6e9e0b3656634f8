// SPDX-License-Identifier: Apache-2.0

// What tests can ask the fake driver in addition to a driver's functions.
#ifndef WAYBILL_TESTING_FAKE_CUDA_FAKE_CUDA_H_
#define WAYBILL_TESTING_FAKE_CUDA_FAKE_CUDA_H_

#include <cstdint>

struct CUstream_st;

inline constexpr int kFakeGpuCount = 2;

// What the whole process uses now, and the bytes that it has copied between the host and GPUs since
// it began.
struct FakeCudaUse {
  uint64_t
      allocations;  // With mappings of memory of cuMemCreate(), and of other processes' memory.
  uint64_t pinned;
  uint64_t streams;
  uint64_t bytes_to_host;
  uint64_t bytes_to_device;
  uint64_t handles;   // Of memory of cuMemCreate(), that are not released.
  uint64_t reserved;  // Ranges of addresses of cuMemAddressReserve().
  // Calls that may wait for all streams of a GPU: allocations and pins, their ends, and first
  // launches of kernels that are not loaded.
  uint64_t device_waits;
  // Calls that wait for a stream: synchronisations, and copies from and to memory of the host that
  // is not pinned.
  uint64_t round_trips;
  // Calls that queue work on a stream. Each takes 4 to 8 us on an H200.
  uint64_t queued;
};

// What another process does to have memory, or has done for it. All but the last are of memory of
// cuMemCreate().
enum FakeCudaStep {
  kFakeCudaNone,
  kFakeCudaRetain,   // Finding the handle of what is mapped.
  kFakeCudaExport,   // Making a file of it.
  kFakeCudaImport,   // Making a handle of a file.
  kFakeCudaReserve,  // Reserving addresses.
  kFakeCudaMap,      // Mapping it there.
  kFakeCudaAllow,    // Letting a device use the addresses.
  kFakeCudaOpen,     // Opening a handle of other memory, as between PID namespaces.
  kFakeCudaDmabuf,   // Not for a process, but for NICs: exporting a dma-buf.
  kFakeCudaContext,  // Using the GPU at all, which another process has in exclusive mode.
};

// When kernels see what NICs have written to a GPU.
enum FakeCudaWrites {
  kFakeCudaReadBack,        // When a NIC has read: the GPU promises nothing.
  kFakeCudaFlushes,         // When the driver has flushed it.
  kFakeCudaOrders,          // At once.
  kFakeCudaOrdersForOwner,  // At once, those of this GPU; others when the driver has flushed it.
  // When a NIC has read. The GPU is coherent with the host, as on Grace: its driver says that it
  // orders writes, but not those of several ways to it.
  kFakeCudaCoherent,
};

extern "C" {
// Returns whether the GPUs are shown by HIP (--config=hip) instead of by CUDA.
bool FakeCudaIsHip();
// What a GPU says of an attribute (CUdevice_attribute in <cuda.h>); 0 where nothing was set.
void FakeCudaSetAttribute(int device, int attribute, int value);
// Sets the attributes of a GPU that concern NICs.
void FakeCudaSayOfNics(int device, FakeCudaWrites writes, bool exports_dmabuf = true);
// Makes what NICs have written visible on GPUs that need such a read. It is for
// DeviceOptions::after_read of //testing/fake_verbs.
void FakeCudaNicHasRead();
// And whether it has memory of cuMemCreate() with files.
void FakeCudaSayOfFiles(int device, bool has_files);
// Puts fresh pages under the allocation at that address of a GPU, as an engine that sleeps and
// wakes.
void FakeCudaRemap(void* memory);
// While it is so, a stream is captured into a graph: nothing that is queued runs, and events that
// are recorded there are captured ones.
void FakeCudaCapture(CUstream_st* stream, bool is_captured);
// The allocation at that address is managed memory from now on.
void FakeCudaMakeManaged(void* memory);
// Returns a dma-buf of whole pages of a GPU's memory, or -1 if they are none, even if the GPU
// exports no dma-bufs. The caller closes it. It is for DeviceOptions::peer_memory of
// //testing/fake_verbs.
int FakeCudaPeerMemory(uint64_t begin, uint64_t size_bytes);
// Makes that step fail; kFakeCudaNone ends that.
void FakeCudaRefuse(FakeCudaStep step);
// Loses the GPUs: after the next `after` asynchronous calls, allocations, pins and waits for
// streams, all of them fail. A negative number ends that.
void FakeCudaFail(int64_t after);
// While `is_held` is true, no GPU runs anything; what is queued waits.
void FakeCudaHold(bool is_held);
FakeCudaUse FakeCudaNow();
}

#endif  // WAYBILL_TESTING_FAKE_CUDA_FAKE_CUDA_H_
