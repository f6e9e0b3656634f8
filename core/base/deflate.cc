// SPDX-License-Identifier: Apache-2.0

#include "core/base/deflate.h"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

const Bytef* AsBytes(absl::string_view bytes) {
  return reinterpret_cast<const Bytef*>(bytes.data());
}

}  // namespace

std::string Deflate(absl::string_view bytes) {
  const uint64_t size = bytes.size();
  uLongf used = compressBound(size);
  std::string out(sizeof(size) + used, '\0');
  std::memcpy(out.data(), &size, sizeof(size));
  // The bound leaves room, so this fails only for want of memory, as the allocation above would.
  if (compress2(reinterpret_cast<Bytef*>(out.data() + sizeof(size)), &used, AsBytes(bytes), size,
                Z_BEST_SPEED) != Z_OK) {
    std::abort();
  }
  out.resize(sizeof(size) + used);
  return out;
}

absl::StatusOr<std::string> Inflate(absl::string_view compressed, size_t most_bytes) {
  // Deflate shrinks nothing by more than this. A larger size is rejected before memory is
  // allocated.
  constexpr uint64_t kMostRatio = 1100;
  uint64_t size = 0;
  const absl::string_view body = compressed.substr(std::min(sizeof(size), compressed.size()));
  if (compressed.size() >= sizeof(size)) std::memcpy(&size, compressed.data(), sizeof(size));
  if (compressed.size() < sizeof(size) || size > most_bytes || size > kMostRatio * body.size()) {
    return absl::InvalidArgumentError(absl::StrCat("compressed: ", compressed.size(),
                                                   " bytes that say they hold ", size, ", at most ",
                                                   most_bytes, " are taken"));
  }
  std::string out(size, '\0');
  uLongf got = size;
  const int result =
      uncompress(reinterpret_cast<Bytef*>(out.data()), &got, AsBytes(body), body.size());
  if (result != Z_OK || got != size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "compressed: ", compressed.size(), " bytes do not hold the ", size, " that they say"));
  }
  return out;
}

}  // namespace waybill
