// SPDX-License-Identifier: Apache-2.0

#include "core/device/shared_memory.h"

#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "core/base/random_bits.h"
#include "core/base/status.h"

namespace waybill {
namespace {

// What this process has named. It cannot open that by the handle, and need not.
class OwnNames {
 public:
  static OwnNames& Get() {
    static OwnNames& names = *new OwnNames;
    return names;
  }

  void Add(uint64_t key, const MemorySpan& memory) {
    const std::lock_guard lock(mutex_);
    memory_[key] = memory;
  }
  void Remove(uint64_t key) {
    const std::lock_guard lock(mutex_);
    memory_.erase(key);
  }
  // Empty if it is not this process's.
  MemorySpan Find(uint64_t key) const {
    const std::lock_guard lock(mutex_);
    const auto found = memory_.find(key);
    return found == memory_.end() ? MemorySpan() : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, MemorySpan> memory_;
};

absl::Status TooShort(uint64_t there, uint64_t wanted) {
  return absl::OutOfRangeError(
      absl::StrCat("memory of a GPU of ", there, " bytes, said to have ", wanted));
}

}  // namespace

absl::StatusOr<NamedMemory> NamedMemory::Create(const MemorySpan& memory) {
  SharedMemoryName name;
  WAYBILL_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, OpenDeviceOf({memory}));
  WAYBILL_ASSIGN_OR_RETURN(name.key, RandomBits());
  const auto place = device->HandleOf(memory);
  if (absl::IsUnimplemented(place.status())) {
    WAYBILL_ASSIGN_OR_RETURN(std::vector<CreatedPart> parts, FindCreatedParts(*device, memory));
    // Exports each part once, so that a driver that refuses is noticed before anybody relies on it.
    for (const CreatedPart& part : parts) {
      WAYBILL_RETURN_IF_ERROR(waybill::ExportPart(*device, part).status());
    }
    name.offset_bytes = static_cast<uint64_t>(memory.data - parts.front().begin);
    name.part_count = parts.size();
    NamedMemory named(name, device);
    named.parts_ = std::move(parts);
    return named;
  }
  WAYBILL_RETURN_IF_ERROR(place.status());
  name.handle = place->first;
  name.offset_bytes = place->second;
  OwnNames::Get().Add(name.key, memory);
  return NamedMemory(name, device);
}

NamedMemory::~NamedMemory() {
  if (name_.names_something()) OwnNames::Get().Remove(name_.key);
}

absl::StatusOr<OpenedMemory> OpenedMemory::Open(std::shared_ptr<Device> device,
                                                const SharedMemoryName& name, uint64_t size_bytes,
                                                absl::Span<const PartHandle> parts) {
  if (name.part_count > 0) {
    WAYBILL_ASSIGN_OR_RETURN(MappedParts mapped, MappedParts::Map(device, parts));
    const absl::Span<std::byte> bytes = mapped.bytes();
    if (name.offset_bytes > bytes.size() || size_bytes > bytes.size() - name.offset_bytes) {
      return TooShort(bytes.size(), size_bytes);
    }
    OpenedMemory opened(std::move(device), nullptr);
    opened.mapped_parts_.emplace(std::move(mapped));
    opened.data_ = bytes.data() + name.offset_bytes;
    return opened;
  }
  if (const MemorySpan own = OwnNames::Get().Find(name.key); own.data != nullptr) {
    if (size_bytes > own.size_bytes) return TooShort(own.size_bytes, size_bytes);
    OpenedMemory opened(std::move(device), nullptr);
    opened.data_ = own.data;
    return opened;
  }
  WAYBILL_ASSIGN_OR_RETURN(const absl::Span<std::byte> mapping, device->OpenHandle(name.handle));
  OpenedMemory opened(std::move(device), mapping.data());
  if (name.offset_bytes > mapping.size() || size_bytes > mapping.size() - name.offset_bytes) {
    return TooShort(mapping.size(), size_bytes);
  }
  opened.data_ = mapping.data() + name.offset_bytes;
  return opened;
}

OpenedMemory::~OpenedMemory() {
  if (mapping_ != nullptr) device_->CloseHandle(mapping_);
}

}  // namespace waybill
