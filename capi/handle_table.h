// SPDX-License-Identifier: Apache-2.0

// Maps handles to objects. A handle is a kind, a generation and an index in the form of a pointer.
// It is looked up and never dereferenced.
#ifndef WAYBILL_CAPI_HANDLE_TABLE_H_
#define WAYBILL_CAPI_HANDLE_TABLE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "capi/object.h"

namespace waybill::capi {

// Thread-safe.
class HandleTable {
 public:
  // Returns the table of this process, which is never destroyed. A forked child has an empty table
  // without its parent's handles.
  static HandleTable& Instance();
  // Returns true if this process was forked from one that used the library.
  static bool forked();

  // Returns a handle that is not 0 and was never returned before.
  uintptr_t Add(Kind kind, std::shared_ptr<Object> object);
  // Returns null if there is no such handle of that kind, or no longer.
  std::shared_ptr<Object> Find(Kind kind, uintptr_t handle) const;
  std::shared_ptr<Object> Remove(Kind kind, uintptr_t handle);
  // The number of handles that are not destroyed.
  uint64_t size() const;

 private:
  struct Slot {
    std::shared_ptr<Object> object;
    uint32_t generation = 0;
  };

  explicit HandleTable(uint32_t first_generation) : first_generation_(first_generation) {}
  static void ForgetInChild();
  const Slot* Look(Kind kind, uintptr_t handle) const;

  const uint32_t first_generation_;
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

// Typed access, by T::Handle and T::kKind.
template <typename T>
typename T::Handle* MakeHandle(std::shared_ptr<T> object) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it is never dereferenced.
  return reinterpret_cast<typename T::Handle*>(
      HandleTable::Instance().Add(T::kKind, std::move(object)));
}

template <typename T>
std::shared_ptr<T> FindObject(const typename T::Handle* handle) {
  return std::static_pointer_cast<T>(
      HandleTable::Instance().Find(T::kKind, reinterpret_cast<uintptr_t>(handle)));
}

// Implements every destroy function.
template <typename T>
void DestroyObject(const typename T::Handle* handle) {
  const std::shared_ptr<Object> object =
      HandleTable::Instance().Remove(T::kKind, reinterpret_cast<uintptr_t>(handle));
  if (object != nullptr) object->Close();
}

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_HANDLE_TABLE_H_
