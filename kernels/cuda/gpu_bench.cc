// usage: gpu_bench [MiB]
//
// Rates of the kernels on the first GPU, beside what its memory does when it copies: of each the
// median and the range of 21 launches. GB/s are 10^9 bytes of all that is read and written; a bound
// is what that would take at the copy's rate.

#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/block_grid.h"
#include "kernels/cuda/cast.h"
#include "kernels/cuda/digest.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/driver_functions.h"
#include "kernels/cuda/leaf_sum.h"
#include "kernels/cuda/maxima.h"
#include "kernels/cuda/quantise.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/transpose.h"
#include "kernels/elements.h"
#include "kernels/scale.h"

namespace waybill::kernels::cuda {
namespace {

constexpr int kLaunches = 21;
constexpr size_t kColumns = 4096;

void Check(const Outcome& outcome) {
  if (outcome.ok()) return;
  std::fprintf(stderr, "gpu_bench: %s\n", outcome.reason().c_str());
  std::exit(1);
}

void Check(const char* what, CUresult result) {
  if (result != CUDA_SUCCESS) Check(Outcome::Failed(Explain(*Driver(), what, result)));
}

void* Allocate(size_t size_bytes) {
  CUdeviceptr memory = 0;
  Check("cuMemAlloc", Driver()->cuMemAlloc_fn(&memory, size_bytes));
  return reinterpret_cast<void*>(memory);
}

struct Rates {
  double median, least, most;
};

// Measures what `queue` queues, by events on the stream.
Rates Measure(Stream stream, size_t moved_bytes, const std::function<void()>& queue) {
  const DriverFunctions& driver = *Driver();
  CUevent begin = nullptr, end = nullptr;
  Check("cuEventCreate", driver.cuEventCreate_fn(&begin, CU_EVENT_DEFAULT));
  Check("cuEventCreate", driver.cuEventCreate_fn(&end, CU_EVENT_DEFAULT));
  for (int i = 0; i < 3; ++i) queue();
  std::vector<double> rates;
  for (int i = 0; i < kLaunches; ++i) {
    Check("cuEventRecord", driver.cuEventRecord_fn(begin, stream));
    queue();
    Check("cuEventRecord", driver.cuEventRecord_fn(end, stream));
    Check("cuEventSynchronize", driver.cuEventSynchronize_fn(end));
    float milliseconds = 0;
    Check("cuEventElapsedTime", driver.cuEventElapsedTime_fn(&milliseconds, begin, end));
    rates.push_back(static_cast<double>(moved_bytes) / (milliseconds * 1e6));
  }
  std::sort(rates.begin(), rates.end());
  driver.cuEventDestroy_fn(begin);
  driver.cuEventDestroy_fn(end);
  return {rates[rates.size() / 2], rates.front(), rates.back()};
}

void Print(const char* name, const Rates& rates, double bound, double target) {
  std::printf("%-44s %8.1f %8.1f to %8.1f", name, rates.median, rates.least, rates.most);
  if (bound != 0) std::printf("   %.2f of the copy", rates.median / bound);
  if (target != 0) std::printf(" (target %.2f)", target);
  std::printf("\n");
}

Stream OpenGpu() {
  Check(FindGpu());
  const DriverFunctions& driver = *Driver();
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  char name[256] = "";
  Check("cuDeviceGet", driver.cuDeviceGet_fn(&device, 0));
  Check("cuDeviceGetName", driver.cuDeviceGetName_fn(name, sizeof(name), device));
  Check("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain_fn(&context, device));
  Check("cuCtxSetCurrent", driver.cuCtxSetCurrent_fn(context));
  Check("cuStreamCreate", driver.cuStreamCreate_fn(&stream, CU_STREAM_NON_BLOCKING));
  Check(PrepareContext());
  std::printf("%s\n", name);
  return stream;
}

void Run(size_t size_bytes) {
  const Stream stream = OpenGpu();
  const DriverFunctions& driver = *Driver();
  const size_t rows = size_bytes / 2 / kColumns;  // Rows of BF16.
  const size_t blocks = rows * kColumns / (128 * 128);
  size_bytes = rows * kColumns * 2;
  void* const src = Allocate(2 * size_bytes);
  void* const dst = Allocate(2 * size_bytes);
  float* const scales = static_cast<float*>(Allocate(4 * (blocks + kColumns)));
  const LeafSum digest{static_cast<uint64_t*>(Allocate(8)), 0};
  const CUdeviceptr to = reinterpret_cast<CUdeviceptr>(dst);
  const CUdeviceptr from = reinterpret_cast<CUdeviceptr>(src);
  // BF16 of 0.0078.
  Check("cuMemsetD8Async", driver.cuMemsetD8Async_fn(from, 0x3c, 2 * size_bytes, stream));
  std::printf("%zu MiB of BF16, rows of %zu; GB/s, median of %d and range\n", size_bytes >> 20,
              kColumns, kLaunches);

  const Rates copy = Measure(stream, 2 * size_bytes, [&] {
    Check("cuMemcpyAsync", driver.cuMemcpyAsync_fn(to, from, size_bytes, stream));
  });
  Print("copy by the driver (the bound)", copy, 0, 0);
  const auto measure = [&](const char* name, size_t moved_bytes, double target,
                           const std::function<Outcome()>& queue) {
    Print(name, Measure(stream, moved_bytes, [&] { Check(queue()); }), copy.median, target);
  };

  const ptrdiff_t pitch = kColumns * 2;
  const BlockGrid grid;
  const ScaleRule rule;
  const ptrdiff_t scales_pitch = kColumns / 128;
  measure("BF16 to block FP8, 128 x 128", size_bytes + size_bytes / 2, 0.7, [&] {
    return QuantiseBlocks(dst, kColumns, scales, scales_pitch, nullptr, src, pitch, rows, kColumns,
                          grid, rule, Wide::kBf16, Wide::kBf16, stream);
  });
  measure("BF16 to FP8 by given factors", size_bytes + size_bytes / 2, 0, [&] {
    return QuantiseRows(dst, kColumns, src, pitch, rows, kColumns, grid, scales, scales_pitch, {},
                        {}, stream);
  });
  measure("the same with digest", size_bytes + size_bytes / 2, 0, [&] {
    return QuantiseRows(dst, kColumns, src, pitch, rows, kColumns, grid, scales, scales_pitch, {},
                        digest, stream);
  });
  measure("maxima of 128 x 128", size_bytes, 0, [&] {
    return CombineMaxima(scales, scales_pitch, src, Wide::kBf16, Wide::kBf16, pitch, rows, kColumns,
                         grid, stream);
  });
  const size_t elements = rows * kColumns;  // As F32, so many fill the whole source.
  measure("cast of F32 to BF16", 3 * size_bytes, 0,
          [&] { return CastElements(Cast::kF32ToBf16, dst, src, elements, {}, stream); });
  measure("the same with digest", 3 * size_bytes, 0,
          [&] { return CastElements(Cast::kF32ToBf16, dst, src, elements, digest, stream); });
  measure("digest", size_bytes, 0.85, [&] { return AddLeaves(digest, src, size_bytes, stream); });
  measure("copy with digest", 2 * size_bytes, 0,
          [&] { return CopyRows(dst, pitch, src, pitch, rows, kColumns * 2, digest, stream); });
  measure("pack: rows of 4096 bytes, 8192 apart", 2 * size_bytes, 0.85, [&] {
    return CopyRows(dst, kColumns, src, 2 * kColumns, size_bytes / kColumns, kColumns, {}, stream);
  });
  measure("pack with digest", 2 * size_bytes, 0.85, [&] {
    return CopyRows(dst, kColumns, src, 2 * kColumns, size_bytes / kColumns, kColumns, digest,
                    stream);
  });
  measure("pack: rows of 256 bytes, 1024 apart", size_bytes, 0,
          [&] { return CopyRows(dst, 256, src, 1024, size_bytes / 512, 256, {}, stream); });
  measure("transpose of BF16", 2 * size_bytes, 0, [&] {
    return Transpose(dst, static_cast<ptrdiff_t>(rows * 2), src, pitch, kColumns, rows, 2, stream);
  });
}

}  // namespace
}  // namespace waybill::kernels::cuda

int main(int argc, char** argv) {
  const size_t mebibytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1024;
  if (mebibytes == 0) {
    std::fprintf(stderr, "usage: gpu_bench [MiB of BF16]\n");
    return 2;
  }
  waybill::kernels::cuda::Run(mebibytes << 20);
  return 0;
}
