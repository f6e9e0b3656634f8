// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/probe_memory.h"

#include <algorithm>
#include <utility>

namespace waybill::verbs {
namespace {

constexpr size_t kFewestSlots = 16;
constexpr uint64_t kSlotBytes = 2 * kProbeBytes;

// Differs between queue pairs, and between packets.
std::byte ProbeByte(uint32_t queue_pair, uint32_t i) {
  return static_cast<std::byte>((queue_pair * 0x9E37'79B1u + i * 0x85EB'CA6Bu) >> 24);
}

}  // namespace

ProbeMemory::~ProbeMemory() {
  for (const Block& block : blocks_) verbs_.DeregMr(block.registration);
}

void ProbeMemory::Grow(size_t slots) {
  // At least twice as many as before, so that lanes one after the other cause few registrations.
  slots = std::max({slots, slots_, kFewestSlots});
  absl::StatusOr<SharedPages> pages = SharedPages::Create(slots * kSlotBytes, "memory for probes");
  if (!pages.ok()) return;
  ibv_mr* const registration = verbs_.RegMr(device_.pd(), pages->data(), pages->size_bytes(),
                                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (registration == nullptr) return;
  for (size_t i = 0; i < slots; ++i) {
    std::byte* const slot = pages->data() + i * kSlotBytes;
    free_.push_back({.incoming = slot,
                     .outgoing = slot + kProbeBytes,
                     .local_key = registration->lkey,
                     .remote_key = registration->rkey});
  }
  slots_ += slots;
  blocks_.push_back({*std::move(pages), registration});
}

void ProbeMemory::Prepare(size_t slots) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (slots > slots_) Grow(slots - slots_);
}

std::optional<ProbeSlot> ProbeMemory::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) Grow(1);
  if (free_.empty()) return std::nullopt;
  const ProbeSlot slot = free_.back();
  free_.pop_back();
  return slot;
}

void ProbeMemory::Return(const ProbeSlot& slot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(slot);
}

void FillProbe(std::byte* bytes, uint32_t queue_pair) {
  for (uint32_t i = 0; i < kProbeBytes; ++i) bytes[i] = ProbeByte(queue_pair, i);
}

uint32_t CountProbeErrors(const std::byte* bytes, uint32_t queue_pair) {
  uint32_t errors = 0;
  for (uint32_t i = 0; i < kProbeBytes; ++i) errors += bytes[i] != ProbeByte(queue_pair, i) ? 1 : 0;
  return errors;
}

}  // namespace waybill::verbs
