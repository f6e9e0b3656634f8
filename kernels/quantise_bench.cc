// SPDX-License-Identifier: Apache-2.0

// Rates of quantisation on one core, beside what memory can do in the same run. Bytes are counted
// once: those that a kernel reads. For ratios under load: --benchmark_enable_random_interleaving.
// With huge-pages as an argument all of it is in pages of 2 MiB, if the system has them.

#include <benchmark/benchmark.h>
#include <hwy/highway.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/block_grid.h"
#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/elements.h"
#include "kernels/maxima.h"
#include "kernels/memory_bound.h"
#include "kernels/quantise.h"
#include "kernels/scale.h"

namespace waybill::kernels {
namespace {

constexpr size_t kColumns = 4096;
constexpr size_t kRows = 32768;  // 256 MiB of BF16: far past the last-level cache.
constexpr size_t kCount = kRows * kColumns;

constexpr size_t kHugePageBytes = 2 << 20;
bool g_huge_pages = false;

std::byte* Map(size_t size_bytes) {
  void* data = mmap(nullptr, size_bytes + kHugePageBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    std::perror("mmap of the benchmark's buffer");
    std::exit(1);
  }
  std::byte* const begin = static_cast<std::byte*>(data);
  std::byte* const aligned = begin + -reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
  if (g_huge_pages && madvise(aligned, size_bytes, MADV_HUGEPAGE) != 0) {
    std::perror("madvise of the benchmark's buffer");
    std::exit(1);
  }
  return aligned;
}

// Weights of a few magnitudes: BF16s of which neighbours differ.
std::byte* Src() {
  static std::byte* const src = [] {
    std::byte* const bytes = Map(kCount * 2);
    uint64_t state = 1;
    for (size_t i = 0; i < kCount * 2; i += 2) {
      state = state * 6364136223846793005 + 1442695040888963407;
      // Signs and mantissas at random, exponents of 2^-9 to 2^-2.
      const uint16_t bits = (state >> 48 & 0x807f) | (0x3b00 + (state >> 40 & 7) * 0x80);
      std::memcpy(bytes + i, &bits, 2);
    }
    return bytes;
  }();
  return src;
}

std::byte* Dst() {
  static std::byte* const dst = [] {
    std::byte* const bytes = Map(kCount * 2);
    std::memset(bytes, 2, kCount * 2);
    return bytes;
  }();
  return dst;
}

// Runs the body with vectors of one target at best, and counts the bytes that it reads.
template <typename Body>
void Measure(benchmark::State& state, int64_t target, size_t read_bytes, Body body) {
  const int64_t supported = hwy::SupportedTargets();
  if ((HWY_TARGETS & supported & target) == 0) {
    state.SkipWithError("not a target of this machine");
    return;
  }
  Src();
  Dst();
  hwy::SetSupportedTargetsForTest(supported & -target);  // Better ones have lower bits.
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  for (auto _ : state) {
    body();
    StreamFence();
    benchmark::ClobberMemory();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * read_bytes));
}

// In the processor's time, as all here: it reads once to have touched all, and once to measure.
void BM_Read(benchmark::State& state) {
  Measure(state, HWY_AVX3, kCount * 2 * 2,
          [] { benchmark::DoNotOptimize(MeasureReadRate(Src(), kCount * 2, 1, 1)); });
}

void BM_Copy(benchmark::State& state) {
  Measure(state, HWY_AVX3, kCount * 2, [] { Copy(Dst(), Src(), kCount * 2, Stores::kStreaming); });
}

#if defined(__x86_64__)
// Does only the memory traffic of block FP8: reads two lines for each line that it streams.
void BM_ReadTwoWriteOne(benchmark::State& state) {
  constexpr size_t kAheadBytes = 4096;
  Measure(state, HWY_AVX3, kCount * 2, [] {
    const std::byte* src = Src();
    std::byte* dst = Dst();
    for (std::byte* const end = dst + kCount; dst != end; dst += 64, src += 128) {
      _mm_prefetch(src + kAheadBytes, _MM_HINT_T0);
      _mm_prefetch(src + kAheadBytes + 64, _MM_HINT_T0);
      for (size_t i = 0; i < 64; i += 16) {
        const auto load = [&](size_t at) {
          return _mm_load_si128(reinterpret_cast<const __m128i*>(src + at));
        };
        _mm_stream_si128(reinterpret_cast<__m128i*>(dst + i), _mm_or_si128(load(i), load(64 + i)));
      }
    }
  });
}
BENCHMARK(BM_ReadTwoWriteOne);
#endif

void BM_CopyDigest(benchmark::State& state) {
  Measure(state, HWY_AVX3, kCount * 2, [] {
    DigestStream digest;
    digest.AbsorbCopy(Dst(), Src(), kCount * 2, Stores::kStreaming);
    benchmark::DoNotOptimize(digest.sum());
  });
}

void BM_Digest(benchmark::State& state) {
  Measure(state, HWY_AVX3, kCount * 2, [] { benchmark::DoNotOptimize(Digest(Src(), kCount * 2)); });
}

void BM_Maxima(benchmark::State& state, int64_t target) {
  const BlockGrid grid;
  std::vector<float> maxima(grid.RowsOfBlocks(kRows) * grid.ColumnsOfBlocks(kColumns));
  Measure(state, target, kCount * 2, [&] {
    CombineMaxima(maxima.data(), grid.ColumnsOfBlocks(kColumns), Src(), Wide::kBf16, Wide::kBf16,
                  kColumns * 2, kRows, kColumns, grid);
  });
}

// A matrix that fits into a cache, again and again.
void BM_InCache(benchmark::State& state, int64_t target) {
  constexpr size_t kSide = 128;
  const BlockGrid grid;
  const float factor = 448 / 0.5F;
  Measure(state, target, kSide * kSide * 2, [&] {
    QuantiseRows(Dst(), kSide, Src(), kSide * 2, kSide, kSide, grid, &factor, 1, {},
                 Stores::kCached, nullptr);
  });
}

void BM_QuantiseBlocks(benchmark::State& state, int64_t target, BlockGrid grid,
                       ScaleRounding rounding, bool with_digest) {
  ScaleRule rule;
  rule.rounding = rounding;
  const size_t blocks = grid.ColumnsOfBlocks(kColumns);
  std::vector<float> scales(grid.RowsOfBlocks(kRows) * blocks);
  Measure(state, target, kCount * 2, [&] {
    DigestStream digest;
    QuantiseBlocks(Dst(), kColumns, scales.data(), static_cast<ptrdiff_t>(blocks), Src(),
                   kColumns * 2, kRows, kColumns, grid, rule, Wide::kBf16, Wide::kBf16,
                   Stores::kStreaming, with_digest ? &digest : nullptr);
    benchmark::DoNotOptimize(digest.sum());
  });
}

constexpr BlockGrid kSquare = {128, 128};
constexpr BlockGrid kMx = {1, 32};

BENCHMARK(BM_Read);
BENCHMARK(BM_Copy);
BENCHMARK(BM_CopyDigest);
BENCHMARK(BM_Digest);
BENCHMARK_CAPTURE(BM_Maxima, avx512, HWY_AVX3_DL);
BENCHMARK_CAPTURE(BM_InCache, avx512, HWY_AVX3_DL);
BENCHMARK_CAPTURE(BM_InCache, avx512_no_vbmi, HWY_AVX3);
BENCHMARK_CAPTURE(BM_InCache, avx2, HWY_AVX2);
BENCHMARK_CAPTURE(BM_QuantiseBlocks, avx512, HWY_AVX3_DL, kSquare, ScaleRounding::kNone, false);
BENCHMARK_CAPTURE(BM_QuantiseBlocks, avx512_digest, HWY_AVX3_DL, kSquare, ScaleRounding::kNone,
                  true);
BENCHMARK_CAPTURE(BM_QuantiseBlocks, avx2, HWY_AVX2, kSquare, ScaleRounding::kNone, false);
BENCHMARK_CAPTURE(BM_QuantiseBlocks, avx2_digest, HWY_AVX2, kSquare, ScaleRounding::kNone, true);
BENCHMARK_CAPTURE(BM_QuantiseBlocks, mx_avx512, HWY_AVX3_DL, kMx, ScaleRounding::kFloorExponent,
                  false);
BENCHMARK_CAPTURE(BM_QuantiseBlocks, mx_avx2, HWY_AVX2, kMx, ScaleRounding::kFloorExponent, false);

}  // namespace
}  // namespace waybill::kernels

int main(int argc, char** argv) {
  using namespace waybill::kernels;
  benchmark::Initialize(&argc, argv);
  if (argc > 1 && std::strcmp(argv[1], "huge-pages") == 0) {
    g_huge_pages = true;
    --argc;
  }
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const int64_t compiled = HWY_TARGETS & hwy::SupportedTargets();
  benchmark::AddCustomContext("target", hwy::TargetName(compiled & -compiled));
  benchmark::RunSpecifiedBenchmarks();
}
