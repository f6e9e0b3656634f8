// SPDX-License-Identifier: Apache-2.0

// Sizes and rates of the encoding of what changed, on one core, beside what memory can do in the
// same run.
//
//     bazel run --config=bench //core/change:change_bench
//
// Rates are in GB/s of the newest version and of the processor's time, each the median of kRounds.
// All of a row are measured once a round, so that their ratios mean more than their absolute
// values: an encoder is compared with reading both versions, and a decoder with memcpy of one. The
// last column takes the largest changes over into a copy of the version before, 1 % of the
// elements.

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "core/change/change_decoder.h"
#include "core/change/change_encoder.h"
#include "core/change/chunk_encoding.h"
#include "core/change/largest_changes.h"
#include "kernels/changed.h"
#include "kernels/elements.h"
#include "kernels/memory_bound.h"
#include "kernels/scalar.h"

namespace waybill {
namespace {

constexpr size_t kVersionBytes = size_t{256} << 20;  // Far past the last-level cache.
constexpr size_t kElements = kVersionBytes / 2;
constexpr int kRounds = 7;

absl::Span<std::byte> Map(size_t size_bytes) {
  void* data =
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    std::perror("mmap of the benchmark's buffer");
    std::exit(1);
  }
  std::memset(data, 1, size_bytes);
  return absl::MakeSpan(static_cast<std::byte*>(data), size_bytes);
}

// The bits that an element takes if a share of them change by one unit up or down.
double EntropyBits(double share) {
  if (share == 0 || share == 1) return share;
  return -share * std::log2(share) - (1 - share) * std::log2(1 - share) + share;
}

struct Case {
  const char* name;
  double share;         // The share of the rows that change.
  size_t row_elements;  // All elements of a row change, or none.
  bool by_one_unit;     // Otherwise to any value.
};

constexpr Case kCases[] = {
    {"unchanged", 0, 1, true},
    {"1 % by one unit", 0.01, 1, true},
    {"10 % by one unit", 0.1, 1, true},
    {"50 % by one unit", 0.5, 1, true},
    {"5 % of rows of 384", 0.05, 384, false},
    {"5 % of rows of 4096", 0.05, 4096, false},
    {"everything", 1, 1, false},
};

struct Buffers {
  absl::Span<std::byte> before = Map(kVersionBytes);
  absl::Span<std::byte> newest = Map(kVersionBytes);
  absl::Span<std::byte> target = Map(kVersionBytes);
  absl::Span<std::byte> encodings = Map(kVersionBytes + kVersionBytes / kMostChunkBytes * 16);
};

// Fills both versions, and returns the bytes of the elements that changed.
size_t Fill(const Buffers& buffers, const Case& c) {
  uint64_t state = 1;
  const auto random = [&state] { return kernels::scalar::Mix(state += 0x9e3779b97f4a7c15); };
  const double limit = std::ldexp(c.share, 64);
  bool changes = false;
  size_t changed = 0;
  for (size_t i = 0; i < kElements; ++i) {
    if (i % c.row_elements == 0) changes = static_cast<double>(random()) < limit;
    const uint64_t r = random();
    // Signs and mantissas at random, exponents of 2^-9 to 2^-2.
    const uint16_t before = (r & 0x807f) | (0x3b00 + (r >> 16 & 7) * 0x80);
    uint16_t newest = before;
    if (changes) {
      newest = static_cast<uint16_t>(c.by_one_unit ? before + 1 - 2 * (r >> 32 & 1) : r >> 40);
    }
    changed += newest != before ? 1 : 0;
    std::memcpy(buffers.before.data() + 2 * i, &before, 2);
    std::memcpy(buffers.newest.data() + 2 * i, &newest, 2);
  }
  return changed * 2;
}

// Calls `work` with the offset of each chunk.
void ForChunks(const std::function<void(size_t)>& work) {
  for (size_t offset = 0; offset < kVersionBytes; offset += kMostChunkBytes) work(offset);
}

// Returns the processor's time that this thread has used.
double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class Rates {
 public:
  void Measure(const std::function<void()>& work) {
    const double begin = ThreadSeconds();
    work();
    rates_.push_back(kVersionBytes / (ThreadSeconds() - begin) / 1e9);
  }
  double Median() {
    std::sort(rates_.begin(), rates_.end());
    return rates_[rates_.size() / 2];
  }

 private:
  std::vector<double> rates_;
};

void Run(const Buffers& buffers, const Case& c) {
  const size_t changed_bytes = Fill(buffers, c);
  Rates read, copy, find, measure, encode, apply, take;
  LargestChanges largest;
  std::vector<absl::Span<const std::byte>> encodings(kVersionBytes / kMostChunkBytes);
  std::vector<uint16_t> indices(kBlockElements);
  const auto chunk = [](absl::Span<std::byte> version, size_t offset) {
    return version.subspan(offset, kMostChunkBytes);
  };
  const auto stop_unless = [](const absl::Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::exit(1);
  };
  size_t size_bytes = 0;
  for (int round = 0; round < kRounds; ++round) {
    read.Measure([&] {  // 0 repeats: each version is read once.
      kernels::MeasureReadRate(buffers.newest.data(), kVersionBytes, 1, 0);
      kernels::MeasureReadRate(buffers.before.data(), kVersionBytes, 1, 0);
    });
    find.Measure([&] {
      for (size_t i = 0; i < kElements; i += kBlockElements) {
        kernels::FindChanged(buffers.newest.data() + 2 * i, buffers.before.data() + 2 * i,
                             kBlockElements, 2, indices.data());
      }
    });
    measure.Measure([&] {
      ForChunks([&](size_t offset) {
        stop_unless(MeasureChanges(chunk(buffers.newest, offset), chunk(buffers.before, offset),
                                   ElementWidth::kTwo)
                        .status());
      });
    });
    encode.Measure([&] {
      size_bytes = 0;
      ForChunks([&](size_t offset) {
        const absl::Span<std::byte> out = buffers.encodings.subspan(size_bytes);
        const auto encoded = EncodeChanges(chunk(buffers.newest, offset),
                                           chunk(buffers.before, offset), ElementWidth::kTwo, out);
        stop_unless(encoded.status());
        encodings[offset / kMostChunkBytes] = out.first(encoded->size_bytes);
        size_bytes += encoded->size_bytes;
      });
    });
    copy.Measure([&] { std::memcpy(buffers.target.data(), buffers.before.data(), kVersionBytes); });
    apply.Measure([&] {
      ForChunks([&](size_t offset) {
        stop_unless(ApplyChanges(encodings[offset / kMostChunkBytes], chunk(buffers.before, offset),
                                 ElementWidth::kTwo, chunk(buffers.target, offset),
                                 kernels::Stores::kStreaming));
      });
    });
    if (std::memcmp(buffers.target.data(), buffers.newest.data(), kVersionBytes) != 0) {
      stop_unless(absl::InternalError("the target differs from the newest version"));
    }
    take.Measure([&] {
      constexpr size_t kElementsAtATime = LargestChanges::kBlockElements;
      for (size_t i = 0; i < kElements; i += kElementsAtATime) {
        std::byte* const target = buffers.target.data() + 2 * i;
        std::memcpy(target, buffers.before.data() + 2 * i, 2 * kElementsAtATime);
        largest.Take(kernels::Wide::kBf16, buffers.newest.data() + 2 * i, target, kElementsAtATime,
                     kElementsAtATime / 100);
      }
    });
  }
  const double bound_bytes =
      c.by_one_unit ? EntropyBits(c.share) / 8 * kElements : static_cast<double>(changed_bytes);
  absl::PrintF("%-20s %8.3f %7.3f  %7.1f %7.1f %7.1f %7.1f %7.2f  %7.1f %7.1f %7.2f  %7.2f\n",
               c.name, 100.0 * static_cast<double>(size_bytes) / kVersionBytes,
               bound_bytes == 0 ? 0 : static_cast<double>(size_bytes) / bound_bytes, read.Median(),
               find.Median(), measure.Median(), encode.Median(), encode.Median() / read.Median(),
               copy.Median(), apply.Median(), apply.Median() / copy.Median(), take.Median());
  std::fflush(stdout);
}

}  // namespace
}  // namespace waybill

int main() {
  using namespace waybill;
  absl::PrintF(
      "%d MiB of BF16 in chunks of %d MiB; the bound is the entropy, or the bytes of rows\n",
      kVersionBytes >> 20, kMostChunkBytes >> 20);
  absl::PrintF("%-20s %8s %7s  %7s %7s %7s %7s %7s  %7s %7s %7s  %7s\n", "", "size %", "/bound",
               "read", "find", "measure", "encode", "/read", "memcpy", "apply", "/memcpy",
               "largest");
  const Buffers buffers;
  for (const Case& c : kCases) Run(buffers, c);
}
