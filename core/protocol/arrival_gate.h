// SPDX-License-Identifier: Apache-2.0

// Decides when a worker has everything: when the last write of every lane that the plan uses has
// landed.
#ifndef WAYBILL_CORE_PROTOCOL_ARRIVAL_GATE_H_
#define WAYBILL_CORE_PROTOCOL_ARRIVAL_GATE_H_

#include <cstdint>
#include <vector>

namespace waybill {

// Lanes are numbered by whoever owns the gate. Not thread-safe: lives on the progress thread.
class ArrivalGate {
 public:
  explicit ArrivalGate(uint32_t lane_count) : seen_(lane_count, kNever) {}

  // From now on `sequence` is waited for. What has come early already counts.
  void Arm(uint32_t sequence);

  // Counts an immediate. One of an earlier sequence is a straggler of an abandoned update; a second
  // one of a lane is a repeat. Both are counted apart, and harmless.
  void Count(uint32_t lane, uint32_t sequence);

  bool arrived(uint32_t lane) const { return seen_[lane] == armed_; }
  bool open() const { return missing_ == 0; }
  uint32_t missing() const { return missing_; }

  uint64_t stragglers() const { return stragglers_; }
  uint64_t repeats() const { return repeats_; }

 private:
  static constexpr uint32_t kNever = ~uint32_t{0};  // Not a sequence: those have 28 bits.

  std::vector<uint32_t> seen_;  // The newest sequence of each lane.
  uint32_t armed_ = kNever;
  uint32_t missing_ = 0;
  uint64_t stragglers_ = 0;
  uint64_t repeats_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_ARRIVAL_GATE_H_
