// SPDX-License-Identifier: Apache-2.0

// What an examination of a host has found.
#ifndef WAYBILL_CORE_HOST_FINDING_H_
#define WAYBILL_CORE_HOST_FINDING_H_

#include <cstdint>
#include <string>

namespace waybill {

struct Finding {
  enum class Level : uint8_t {
    kGood,
    kNote,  // Works, and could be better, or is not there and not needed.
    kBad,   // Will not work, or far below what the hardware does.
  };
  std::string subject;  // "mlx5_0, MTU".
  Level level = Level::kGood;
  std::string found;
  std::string remedy;  // Empty if nothing is to be done.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_HOST_FINDING_H_
