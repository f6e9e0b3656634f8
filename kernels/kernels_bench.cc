// SPDX-License-Identifier: Apache-2.0

// Rates of the kernels on one core, beside what memory can do in the same run. Bytes are counted
// once: those that a kernel reads. For ratios under load: --benchmark_enable_random_interleaving.

#include <benchmark/benchmark.h>
#include <hwy/highway.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cast.h"
#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/memory_bound.h"
#include "kernels/rows.h"
#include "kernels/transpose.h"

namespace waybill::kernels {
namespace {

constexpr size_t kLargeBytes = 256 << 20;  // Far past the last-level cache.

std::byte* Map(int fill) {
  void* data =
      mmap(nullptr, kLargeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    std::perror("mmap of the benchmark's buffer");
    std::exit(1);
  }
  std::memset(data, fill, kLargeBytes);
  return static_cast<std::byte*>(data);
}

std::byte* Src() {
  static std::byte* const src = Map(1);
  return src;
}

std::byte* Dst() {
  static std::byte* const dst = Map(2);
  return dst;
}

void CountBytes(benchmark::State& state, size_t bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes));
}

// The bound of all that read: one core that only reads.
void BM_ReadBound(benchmark::State& state) {
  const size_t size = state.range(0);
  for (auto _ : state) {
    state.SetIterationTime(static_cast<double>(size) / MeasureReadRate(Src(), size, 1, 1));
  }
  CountBytes(state, size);
}

void BM_Memcpy(benchmark::State& state) {
  const size_t size = state.range(0);
  for (auto _ : state) {
    std::memcpy(Dst(), Src(), size);
    benchmark::ClobberMemory();
  }
  CountBytes(state, size);
}

void BM_Copy(benchmark::State& state, Stores stores) {
  const size_t size = state.range(0);
  for (auto _ : state) {
    Copy(Dst(), Src(), size, stores);
    StreamFence();
    benchmark::ClobberMemory();
  }
  CountBytes(state, size);
}

void BM_Digest(benchmark::State& state) {
  const size_t size = state.range(0);
  for (auto _ : state) benchmark::DoNotOptimize(Digest(Src(), size));
  CountBytes(state, size);
}

// `skew_bytes`: how far dst is from a cache line.
void BM_CopyDigest(benchmark::State& state, Stores stores, size_t skew_bytes) {
  const size_t size = state.range(0) - skew_bytes;
  for (auto _ : state) {
    DigestStream digest;
    digest.AbsorbCopy(Dst() + skew_bytes, Src(), size, stores);
    StreamFence();
    benchmark::DoNotOptimize(FinishDigest(digest.sum(), size));
  }
  CountBytes(state, size);
}

// Packs rows that lie four times their length apart.
void BM_PackRows(benchmark::State& state, Stores stores, bool with_digest) {
  const size_t row_bytes = state.range(0);
  const size_t rows = state.range(1) / row_bytes;
  for (auto _ : state) {
    DigestStream digest;
    CopyRows(Dst(), row_bytes, Src(), 4 * row_bytes, rows, row_bytes, stores,
             with_digest ? &digest : nullptr);
    StreamFence();
    benchmark::DoNotOptimize(digest.sum());
  }
  CountBytes(state, rows * row_bytes);
}

void BM_DigestRows(benchmark::State& state) {
  const size_t row_bytes = state.range(0);
  const size_t rows = state.range(1) / row_bytes;
  for (auto _ : state) {
    DigestStream digest;
    AbsorbRows(Src(), 4 * row_bytes, rows, row_bytes, &digest);
    benchmark::DoNotOptimize(digest.sum());
  }
  CountBytes(state, rows * row_bytes);
}

void BM_Cast(benchmark::State& state, Cast cast, Stores stores, bool with_digest) {
  const size_t elements = state.range(0) / 4;  // Four bytes are the wider of both.
  for (auto _ : state) {
    DigestStream digest;
    CastElements(cast, Dst(), Src(), elements, stores, with_digest ? &digest : nullptr);
    StreamFence();
    benchmark::DoNotOptimize(digest.sum());
  }
  CountBytes(state, elements * SizeBytes(SourceOf(cast)));
}

void BM_Transpose(benchmark::State& state, bool with_digest) {
  const size_t side = state.range(0);
  const size_t element = state.range(1);
  for (auto _ : state) {
    DigestStream digest;
    Transpose(Dst(), side * element, Src(), side * element, side, side, element,
              with_digest ? &digest : nullptr);
    benchmark::DoNotOptimize(digest.sum());
  }
  CountBytes(state, side * side * element);
}

// The pieces of 1 MiB of matrices, as an update stages them, over more memory than caches have. The
// rows are halves of the rows of dst, as from one of two trainers.
void BM_TransposePieces(benchmark::State& state, bool with_digest) {
  Dst(), Src();  // Touched before the clock runs.
  const size_t rows = state.range(0), columns = state.range(1), element = state.range(2);
  const size_t matrix_bytes = rows * columns * element;
  const size_t matrices = std::max<size_t>(1, kLargeBytes / 2 / matrix_bytes);
  const size_t rows_at_once = std::max<size_t>(1, (size_t{1} << 20) / (columns * element));
  const size_t pitch = 2 * columns * element;
  size_t at = 0;
  for (auto _ : state) {
    DigestStream digest;
    std::byte* const dst = Dst() + at * 2 * matrix_bytes;
    const std::byte* const src = Src() + at * matrix_bytes;
    for (size_t r = 0; r < rows; r += rows_at_once) {
      Transpose(dst + r * pitch, pitch, src + r * element, rows * element,
                std::min(rows_at_once, rows - r), columns, element,
                with_digest ? &digest : nullptr);
    }
    benchmark::DoNotOptimize(digest.sum());
    at = (at + 1) % matrices;
  }
  CountBytes(state, matrix_bytes);
}

void BM_CastTranspose(benchmark::State& state, bool with_digest) {
  const size_t side = state.range(0);
  for (auto _ : state) {
    DigestStream digest;
    CastTransposeF32ToBf16(Dst(), side * 2, Src(), side * 4, side, side,
                           with_digest ? &digest : nullptr);
    benchmark::DoNotOptimize(digest.sum());
  }
  CountBytes(state, side * side * 4);
}

void Sizes(benchmark::internal::Benchmark* b) { b->Arg(256)->Arg(16 << 10)->Arg(kLargeBytes); }

// Row lengths; in all 16 KiB (cached) and 64 MiB of them.
void RowSizes(benchmark::internal::Benchmark* b) {
  b->ArgsProduct({{256, 1000, 1024, 2048, 4096, 16384}, {16 << 10, 64 << 20}});
}

void Sides(benchmark::internal::Benchmark* b) { b->ArgsProduct({{1024, 4096}, {1, 2, 4, 8}}); }

// GPT-2's matrices, of two trainers; of BF16 and of F32.
void MatricesOfGpt2(benchmark::internal::Benchmark* b) {
  b->ArgsProduct({{2304, 3072}, {384}, {2, 4}})->ArgsProduct({{768}, {1536}, {2, 4}});
}

BENCHMARK(BM_ReadBound)->Arg(kLargeBytes)->UseManualTime();
BENCHMARK(BM_Memcpy)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Copy, cached, Stores::kCached)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Copy, streaming, Stores::kStreaming)->Apply(Sizes);
BENCHMARK(BM_Digest)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_CopyDigest, cached, Stores::kCached, 0)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_CopyDigest, streaming, Stores::kStreaming, 0)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_CopyDigest, streaming_skewed, Stores::kStreaming, 2)->Arg(kLargeBytes);
BENCHMARK_CAPTURE(BM_PackRows, copy_cached, Stores::kCached, false)->Apply(RowSizes);
BENCHMARK_CAPTURE(BM_PackRows, copy_streaming, Stores::kStreaming, false)->Apply(RowSizes);
BENCHMARK_CAPTURE(BM_PackRows, digest_cached, Stores::kCached, true)->Apply(RowSizes);
BENCHMARK_CAPTURE(BM_PackRows, digest_streaming, Stores::kStreaming, true)->Apply(RowSizes);
BENCHMARK(BM_DigestRows)->Apply(RowSizes);
BENCHMARK_CAPTURE(BM_Cast, f32_to_bf16_cached, Cast::kF32ToBf16, Stores::kCached, false)
    ->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Cast, f32_to_bf16_streaming, Cast::kF32ToBf16, Stores::kStreaming, false)
    ->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Cast, f32_to_bf16_digest_streaming, Cast::kF32ToBf16, Stores::kStreaming, true)
    ->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Cast, f32_to_f16, Cast::kF32ToF16, Stores::kStreaming, true)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Cast, bf16_to_f32, Cast::kBf16ToF32, Stores::kStreaming, true)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Cast, f16_to_f32, Cast::kF16ToF32, Stores::kStreaming, true)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Transpose, plain, false)->Apply(Sides);
BENCHMARK_CAPTURE(BM_Transpose, digest, true)->Apply(Sides);
BENCHMARK_CAPTURE(BM_TransposePieces, plain, false)->Apply(MatricesOfGpt2);
BENCHMARK_CAPTURE(BM_TransposePieces, digest, true)->Apply(MatricesOfGpt2);
BENCHMARK_CAPTURE(BM_CastTranspose, plain, false)->Arg(1024)->Arg(4096);
BENCHMARK_CAPTURE(BM_CastTranspose, digest, true)->Arg(1024)->Arg(4096);

}  // namespace
}  // namespace waybill::kernels

int main(int argc, char** argv) {
  using namespace waybill::kernels;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const int64_t compiled = HWY_TARGETS & hwy::SupportedTargets();
  benchmark::AddCustomContext("target", hwy::TargetName(compiled & -compiled));
  // Touch the memory before anything is timed.
  Src();
  Dst();
  benchmark::RunSpecifiedBenchmarks();
}
