// SPDX-License-Identifier: Apache-2.0

// Kernels on more than 4 GiB, whose offsets do not fit into 32 bits.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "kernels/cuda/digest.h"
#include "kernels/cuda/leaf_sum.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/test_memory.h"
#include "kernels/digest.h"

namespace waybill::kernels::cuda {
namespace {

constexpr size_t kSize = (size_t{5} << 30) + 4096 * 3 + 5;
constexpr size_t kRow = 4096;

// A GPU's memory, as it comes.
struct Large {
  explicit Large(size_t size_bytes) : data(TheMemory().Allocate(size_bytes)) {}
  ~Large() { TheMemory().Free(data); }
  Large(const Large&) = delete;
  Large& operator=(const Large&) = delete;
  uint8_t* at(size_t offset) const { return static_cast<uint8_t*>(data) + offset; }

  void* const data;
};

uint64_t DigestOf(const Large& memory, const Large& sum) {
  const uint64_t zero = 0;
  TheMemory().Write(sum.data, &zero, 8);
  EXPECT_TRUE(
      AddLeaves({static_cast<uint64_t*>(sum.data), 0}, memory.data, kSize, TheMemory().stream())
          .ok());
  uint64_t found = 0;
  TheMemory().Read(&found, sum.data, 8);
  return FinishDigest(found, kSize);
}

TEST(LargeMemory, DigestAndCopyOf5GiB) {
  const std::string reason = TheMemory().Reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  const Large from(kSize), to(kSize), sum(8);
  if (from.data == nullptr || to.data == nullptr) GTEST_SKIP() << "the GPU has no 10 GiB to spare";
  // Pages that are only read take no memory.
  auto* const host = static_cast<uint8_t*>(mmap(
      nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(host, MAP_FAILED);
  constexpr size_t kPiece = size_t{64} << 20;
  for (size_t at = 0; at < kSize; at += kPiece) {
    TheMemory().Write(from.at(at), host + at, std::min(kPiece, kSize - at));
  }
  // Around each bound of 1 GiB, and at the end.
  for (uint64_t number = 0; number <= 5; ++number) {
    const size_t at = number == 0 ? 100 : (number << 30) - 4000;
    for (size_t i = 0; i < 8000; ++i) host[at + i] = static_cast<uint8_t>(i * 7 + number * 31 + 1);
    TheMemory().Write(from.at(at), host + at, 8000);
  }
  const uint64_t expected = Digest(host, kSize);
  munmap(host, kSize);

  EXPECT_EQ(DigestOf(from, sum), expected);
  ASSERT_TRUE(
      CopyRows(to.data, kRow, from.data, kRow, kSize / kRow, kRow, {}, TheMemory().stream()).ok());
  const size_t rest = kSize / kRow * kRow;
  ASSERT_TRUE(
      CopyRows(to.at(rest), 0, from.at(rest), 0, 1, kSize - rest, {}, TheMemory().stream()).ok());
  EXPECT_EQ(DigestOf(to, sum), expected);
}

}  // namespace
}  // namespace waybill::kernels::cuda
