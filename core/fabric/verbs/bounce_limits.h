// SPDX-License-Identifier: Apache-2.0

// How much memory a lane has for what cannot be registered.
#ifndef WAYBILL_CORE_FABRIC_VERBS_BOUNCE_LIMITS_H_
#define WAYBILL_CORE_FABRIC_VERBS_BOUNCE_LIMITS_H_

#include <cstdint>

namespace waybill::verbs {

struct BounceLimits {
  uint32_t slots = 8;              // The number of slots in each direction.
  uint64_t slot_bytes = 64 << 10;  // The data bytes of a slot. Longer writes are sent in pieces.

  // Before the data of a slot: where it belongs. As long as a cache line, so that data begins one.
  static constexpr uint64_t kHeaderBytes = 64;

  // The locked memory that a lane's ring takes.
  constexpr uint64_t ring_bytes() const {
    return slot_bytes == 0 ? 0 : 2 * slots * (kHeaderBytes + slot_bytes);
  }
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_BOUNCE_LIMITS_H_
