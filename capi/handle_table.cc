// SPDX-License-Identifier: Apache-2.0

#include "capi/handle_table.h"

#include <pthread.h>

#include <atomic>

namespace waybill::capi {
namespace {

static_assert(sizeof(uintptr_t) == 8, "a handle takes 64 bits");

constexpr uint32_t kGenerations = 1 << 24;
// A child's begin here, so that none of its handles is one of its parent's.
constexpr uint32_t kFirstGenerationOfChild = kGenerations / 2;

std::atomic<HandleTable*> g_table = nullptr;
std::atomic<bool> g_forked = false;

constexpr uintptr_t Pack(Kind kind, uint32_t generation, uint32_t index) {
  return uintptr_t{generation} << 40 | uintptr_t{static_cast<uint8_t>(kind)} << 32 | index;
}

}  // namespace

HandleTable& HandleTable::Instance() {
  static const bool made = [] {
    g_table = new HandleTable(1);
    pthread_atfork(nullptr, nullptr, ForgetInChild);
    return true;
  }();
  (void)made;
  return *g_table.load(std::memory_order_acquire);
}

bool HandleTable::forked() { return g_forked.load(std::memory_order_relaxed); }

// Whoever held a lock is not there any more: the parent's table is left alone for ever.
void HandleTable::ForgetInChild() {
  g_table = new HandleTable(kFirstGenerationOfChild);
  g_forked = true;
}

uintptr_t HandleTable::Add(Kind kind, std::shared_ptr<Object> object) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    // Room to be freed into: a destroy cannot fail.
    free_.reserve(slots_.size() + 1);
    slots_.push_back({nullptr, first_generation_});
    free_.push_back(static_cast<uint32_t>(slots_.size() - 1));
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  slots_[index].object = std::move(object);
  return Pack(kind, slots_[index].generation, index);
}

const HandleTable::Slot* HandleTable::Look(Kind kind, uintptr_t handle) const {
  const uint32_t index = static_cast<uint32_t>(handle);
  if (index >= slots_.size()) return nullptr;
  const Slot& slot = slots_[index];
  return slot.object != nullptr && Pack(kind, slot.generation, index) == handle ? &slot : nullptr;
}

std::shared_ptr<Object> HandleTable::Find(Kind kind, uintptr_t handle) const {
  const std::lock_guard lock(mutex_);
  const Slot* slot = Look(kind, handle);
  return slot == nullptr ? nullptr : slot->object;
}

std::shared_ptr<Object> HandleTable::Remove(Kind kind, uintptr_t handle) {
  const std::lock_guard lock(mutex_);
  if (Look(kind, handle) == nullptr) return nullptr;
  const uint32_t index = static_cast<uint32_t>(handle);
  // A slot whose generations are used up is given up.
  if (++slots_[index].generation < kGenerations) free_.push_back(index);
  return std::exchange(slots_[index].object, nullptr);
}

uint64_t HandleTable::size() const {
  const std::lock_guard lock(mutex_);
  uint64_t size = 0;
  for (const Slot& slot : slots_) size += slot.object != nullptr ? 1 : 0;
  return size;
}

}  // namespace waybill::capi
