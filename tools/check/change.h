// SPDX-License-Identifier: Apache-2.0

// Defines how the demo's weights change from version to version. Trainers use it to change them,
// and workers to check them.
//
// Version v of an element is the checkpoint's bits xor Change(v, tensor, number of the element in
// the whole tensor). Only low bits of the mantissa change, so that numbers stay finite and close to
// the original, and elements differ from their neighbours. Version 0 is the checkpoint.
//
// If only a part of the elements changes from each version to the next, as in training, they change
// by one unit in the last place.
#ifndef WAYBILL_TOOLS_CHECK_CHANGE_H_
#define WAYBILL_TOOLS_CHECK_CHANGE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace waybill::check {

struct WeightVersion {
  uint64_t number = 0;
  // The part of the elements that differ from those of each version before: at most a half, or 1.
  double changed = 1;
};

// The key of one tensor in one version.
struct ChangeKey {
  uint32_t seed = 0;
  bool changes = false;  // False in version 0.
  // If not all elements change: one differs from the checkpoint if its hash is below this.
  bool sparse = false;
  uint32_t below = 0;
};

inline ChangeKey KeyOf(const WeightVersion& version, absl::string_view tensor) {
  // FNV-1a over the version and the name. The version is hashed as a separate step.
  uint64_t hash = (0xCBF29CE484222325u ^ version.number) * 0x100000001B3u;
  for (const char c : tensor) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  ChangeKey key = {.seed = static_cast<uint32_t>(hash ^ (hash >> 32)),
                   .changes = version.number != 0,
                   .sparse = version.changed < 1};
  if (key.sparse) {
    // If a part p of each version differs from the checkpoint, 2 p (1 - p) of two versions do.
    const double p = (1 - std::sqrt(std::max(0.0, 1 - 2 * version.changed))) / 2;
    key.below = static_cast<uint32_t>(p * 0x1p32);
  }
  return key;
}

// Returns the mask of bits that may change. Floats keep their sign and exponent.
constexpr uint64_t BitsThatChange(uint32_t element_bytes) {
  return element_bytes == 8   ? 0xFFFFFFFFu
         : element_bytes == 4 ? 0x3FFFFFu
         : element_bytes == 2 ? 0x7Fu
                              : 0x1u;
}

// Returns the change of one element. The caller masks it with BitsThatChange().
constexpr uint32_t Change(ChangeKey key, uint64_t element) {
  if (!key.changes) return 0;
  uint32_t x = static_cast<uint32_t>(element) * 0x9E3779B1u + key.seed;
  x ^= x >> 15;
  x *= 0x85EBCA77u;
  x ^= x >> 13;
  if (!key.sparse) return x;
  // The bits that are compared have to depend on all of the element's number.
  x *= 0xC2B2AE3Du;
  x ^= x >> 16;
  return x < key.below ? 1 : 0;
}

}  // namespace waybill::check

#endif  // WAYBILL_TOOLS_CHECK_CHANGE_H_
