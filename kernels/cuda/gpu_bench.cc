// SPDX-License-Identifier: Apache-2.0

// usage: gpu_bench [--json] [--once] [MiB]...
//
// Rates of the kernels on the first GPU, beside what its memory does when it copies: of each the
// median and the range of 21 measurements, for each size of the BF16 that is read (1024 MiB). GB/s
// are 10^9 bytes of all that is read and written; a bound is what that would take at the copy's
// rate. A measurement is of so many launches that at least 16 MiB are read. --json prints an object
// a line instead; --once launches each kernel once, for rehearsals on simulated GPUs.

#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
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

constexpr int kMeasurements = 21;
constexpr size_t kColumns = 4096;
constexpr size_t kLeastBytes = size_t{16} << 20;  // That a measurement reads.

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

struct Options {
  bool as_json = false;
  bool once = false;
  Stream stream = nullptr;
};

struct Rates {
  double median, least, most;
};

double HostMilliseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// Measures what `queue` queues, `times` times, by events on the stream; by the host's clock where
// the driver has none, as the simulated ones.
Rates Measure(const Options& options, size_t moved_bytes, size_t times,
              const std::function<void()>& queue) {
  const Stream stream = options.stream;
  const DriverFunctions& driver = *Driver();
  CUevent begin = nullptr, end = nullptr;
  Check("cuEventCreate", driver.cuEventCreate_fn(&begin, CU_EVENT_DEFAULT));
  Check("cuEventCreate", driver.cuEventCreate_fn(&end, CU_EVENT_DEFAULT));
  for (int i = 0; i < 3 && !options.once; ++i) queue();
  std::vector<double> rates;
  for (int i = 0; i < (options.once ? 1 : kMeasurements); ++i) {
    Check("cuEventRecord", driver.cuEventRecord_fn(begin, stream));
    const double host_begin = HostMilliseconds();
    for (size_t k = 0; k < times; ++k) queue();
    Check("cuEventRecord", driver.cuEventRecord_fn(end, stream));
    Check("cuEventSynchronize", driver.cuEventSynchronize_fn(end));
    float milliseconds = 0;
    const CUresult timed = driver.cuEventElapsedTime_fn(&milliseconds, begin, end);
    if (timed == CUDA_ERROR_NOT_SUPPORTED) {
      milliseconds = static_cast<float>(HostMilliseconds() - host_begin);
    } else {
      Check("cuEventElapsedTime", timed);
    }
    rates.push_back(static_cast<double>(moved_bytes * times) / (milliseconds * 1e6));
  }
  std::sort(rates.begin(), rates.end());
  driver.cuEventDestroy_fn(begin);
  driver.cuEventDestroy_fn(end);
  return {rates[rates.size() / 2], rates.front(), rates.back()};
}

void Print(const Options& options, size_t size_bytes, const char* name, const Rates& rates,
           double bound, double target) {
  if (options.as_json) {
    std::printf(
        "{\"name\": \"%s\", \"MiB\": %zu, \"median\": %.2f, \"least\": %.2f, \"most\": %.2f, "
        "\"of_copy\": %.3f, \"target\": %.2f}\n",
        name, size_bytes >> 20, rates.median, rates.least, rates.most,
        bound == 0 ? 1.0 : rates.median / bound, target);
    std::fflush(stdout);
    return;
  }
  std::printf("%-44s %8.1f %8.1f to %8.1f", name, rates.median, rates.least, rates.most);
  if (bound != 0) std::printf("   %.2f of the copy", rates.median / bound);
  if (target != 0) std::printf(" (target %.2f)", target);
  std::printf("\n");
}

Stream OpenGpu(bool as_json) {
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
  if (!as_json) std::printf("%s\n", name);
  return stream;
}

void Run(size_t size_bytes, const Options& options) {
  const Stream stream = options.stream;
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
  if (!options.as_json) {
    std::printf("%zu MiB of BF16, rows of %zu; GB/s, median of %d and range\n", size_bytes >> 20,
                kColumns, kMeasurements);
  }

  const size_t times = options.once ? 1 : std::max<size_t>(1, kLeastBytes / size_bytes);
  const Rates copy = Measure(options, 2 * size_bytes, times, [&] {
    Check("cuMemcpyAsync", driver.cuMemcpyAsync_fn(to, from, size_bytes, stream));
  });
  Print(options, size_bytes, "copy by the driver (the bound)", copy, 0, 0);
  const auto measure = [&](const char* name, size_t moved_bytes, double target,
                           const std::function<Outcome()>& queue) {
    const Rates rates = Measure(options, moved_bytes, times, [&] { Check(queue()); });
    Print(options, size_bytes, name, rates, copy.median, target);
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
  measure("BF16 to FP8 by given factors, with digest", size_bytes + size_bytes / 2, 0, [&] {
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
  measure("cast of F32 to BF16, with digest", 3 * size_bytes, 0,
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
  for (void* memory : {src, dst, static_cast<void*>(scales), static_cast<void*>(digest.sum)}) {
    Check("cuMemFree", driver.cuMemFree_fn(reinterpret_cast<CUdeviceptr>(memory)));
  }
}

}  // namespace
}  // namespace waybill::kernels::cuda

int main(int argc, char** argv) {
  waybill::kernels::cuda::Options options;
  std::vector<size_t> sizes;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--json") {
      options.as_json = true;
    } else if (std::string(argv[i]) == "--once") {
      options.once = true;
    } else if (sizes.push_back(std::strtoull(argv[i], nullptr, 10)); sizes.back() == 0) {
      std::fprintf(stderr, "usage: gpu_bench [--json] [--once] [MiB of BF16]...\n");
      return 2;
    }
  }
  if (sizes.empty()) sizes = {1024};
  options.stream = waybill::kernels::cuda::OpenGpu(options.as_json);
  for (const size_t mebibytes : sizes) {
    waybill::kernels::cuda::Run(mebibytes << 20, options);
  }
  return 0;
}
