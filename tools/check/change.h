// SPDX-License-Identifier: Apache-2.0

// Defines how the demo's weights change from version to version. Trainers use it to change them,
// and workers to check them.
//
// Version v of an element is the checkpoint's bits xor Change(v, tensor, number of the element in
// the whole tensor). Only low bits of the mantissa change, so that numbers stay finite and close to
// the original, and elements differ from their neighbours. Version 0 is the checkpoint.
#ifndef WAYBILL_TOOLS_CHECK_CHANGE_H_
#define WAYBILL_TOOLS_CHECK_CHANGE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace waybill::check {

// The key of one tensor in one version.
struct ChangeKey {
  uint32_t seed = 0;
  bool changes = false;  // False in version 0.
};

constexpr ChangeKey KeyOf(uint64_t version, absl::string_view tensor) {
  // FNV-1a over the version and the name. The version is hashed as a separate step.
  uint64_t hash = (0xCBF29CE484222325u ^ version) * 0x100000001B3u;
  for (const char c : tensor) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return {static_cast<uint32_t>(hash ^ (hash >> 32)), version != 0};
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
  return x ^ (x >> 13);
}

}  // namespace waybill::check

#endif  // WAYBILL_TOOLS_CHECK_CHANGE_H_
