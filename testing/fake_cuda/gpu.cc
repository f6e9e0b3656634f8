#include "testing/fake_cuda/gpu.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <utility>

#include "testing/fake_cuda/dmabuf_parts.h"

namespace waybill {
namespace {

constexpr size_t kPageBytes = 4096;

UniqueFd MakeFile(size_t size_bytes, const std::string& name = "fake GPU") {
  UniqueFd file(memfd_create(name.c_str(), MFD_CLOEXEC));
  if (file.valid() && ftruncate(file.get(), static_cast<off_t>(size_bytes)) != 0) file.Reset();
  return file;
}

std::vector<std::byte> ReadFile(const UniqueFd& file, size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  if (pread(file.get(), bytes.data(), size_bytes, 0) != static_cast<ssize_t>(size_bytes)) abort();
  return bytes;
}

void WriteFile(const UniqueFd& file, const std::vector<std::byte>& bytes, size_t begin,
               size_t size_bytes) {
  if (pwrite(file.get(), bytes.data() + begin, size_bytes, static_cast<off_t>(begin)) !=
      static_cast<ssize_t>(size_bytes)) {
    abort();
  }
}

bool IsWhole(size_t size_bytes) {
  return size_bytes > 0 && size_bytes % FakeMemory::kGranularityBytes == 0;
}

size_t Pages(size_t size_bytes) { return (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

FakeMemory& FakeMemory::Get() {
  static FakeMemory& memory = *new FakeMemory;
  return memory;
}

std::byte* FakeMemory::Allocate(size_t size_bytes, int device) {
  UniqueFd file = MakeFile(Pages(size_bytes));
  if (!file.valid()) return nullptr;
  void* const pages = mmap(nullptr, Pages(size_bytes), PROT_NONE, MAP_SHARED, file.get(), 0);
  if (pages == MAP_FAILED) return nullptr;
  const std::lock_guard lock(mutex_);
  allocations_[static_cast<std::byte*>(pages)] = {size_bytes, device, ++last_id_, std::move(file),
                                                  UniqueFd()};
  return static_cast<std::byte*>(pages);
}

int FakeMemory::Export(std::byte* begin, size_t size_bytes, bool ordered) {
  const std::lock_guard lock(mutex_);
  if (size_bytes == 0 || size_bytes % kPageBytes != 0) return -1;
  std::vector<DmabufPart> parts;
  int device = -1;
  for (std::byte* at = begin; at < begin + size_bytes; at += parts.back().size_bytes) {
    const auto after = allocations_.upper_bound(at);
    if (after == allocations_.begin()) return -1;
    auto& [first, allocation] = *std::prev(after);
    const auto offset = static_cast<size_t>(at - first);
    const size_t pages_bytes = Pages(allocation.size_bytes);
    if (offset % kPageBytes != 0 || offset >= pages_bytes) return -1;
    // Only memory of cuMemCreate() is mapped side by side on purpose.
    if (at != begin && (allocation.created == 0 || allocation.device != device)) return -1;
    device = allocation.device;
    const size_t left_bytes = size_bytes - static_cast<size_t>(at - begin);
    parts.push_back(
        {FileForNics(allocation, ordered), offset, std::min(pages_bytes - offset, left_bytes)});
  }
  if (parts.size() > 1) {
    UniqueFd list(memfd_create(kDmabufPartsName, MFD_CLOEXEC));
    const auto list_bytes = static_cast<ssize_t>(parts.size() * sizeof(DmabufPart));
    if (write(list.get(), parts.data(), static_cast<size_t>(list_bytes)) != list_bytes) abort();
    return list.Release();
  }
  // A descriptor of its own, with its own position.
  const std::string path = "/proc/self/fd/" + std::to_string(parts[0].fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  lseek(fd, static_cast<off_t>(parts[0].offset_bytes), SEEK_SET);
  return fd;
}

int FakeMemory::FileForNics(Allocation& allocation, bool ordered) {
  if (ordered) return allocation.pages.get();
  if (!allocation.inbound.valid()) {
    const size_t pages_bytes = Pages(allocation.size_bytes);
    allocation.inbound = MakeFile(pages_bytes);
    allocation.flushed = ReadFile(allocation.pages, pages_bytes);
    WriteFile(allocation.inbound, allocation.flushed, 0, pages_bytes);
  }
  return allocation.inbound.get();
}

FakeMemory::Place FakeMemory::Find(std::byte* address) const {
  const std::lock_guard lock(mutex_);
  const auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return {};
  const auto& [begin, allocation] = *std::prev(after);
  if (address >= begin + allocation.size_bytes) return {};
  Place place{.begin = begin,
              .size_bytes = allocation.size_bytes,
              .id = allocation.id,
              .managed = allocation.managed};
  if (const auto created = created_.find(allocation.created); created != created_.end()) {
    place.is_created = true;
    place.handle_types = created->second.handle_types;
  }
  return place;
}

void FakeMemory::Remap(std::byte* address) {
  const std::lock_guard lock(mutex_);
  auto& [begin, allocation] = *std::prev(allocations_.upper_bound(address));
  const size_t size_bytes = Pages(allocation.size_bytes);
  UniqueFd file = MakeFile(size_bytes);
  if (mmap(begin, size_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file.get(), 0) == MAP_FAILED) {
    abort();
  }
  allocation.pages = std::move(file);
  allocation.inbound.Reset();
  allocation.id = ++last_id_;
}

void FakeMemory::MakeManaged(std::byte* address) {
  const std::lock_guard lock(mutex_);
  std::prev(allocations_.upper_bound(address))->second.managed = true;
}

FakeMemory::Handle FakeMemory::HandleOf(std::byte* begin) const {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(begin);
  if (found == allocations_.end() || found->second.created != 0 || found->second.opens > 0) {
    return {};
  }
  const Allocation& allocation = found->second;
  return {.process = getpid(),
          .fd = allocation.pages.get(),
          .size_bytes = allocation.size_bytes,
          .id = allocation.id};
}

std::byte* FakeMemory::Open(const Handle& handle, int device) {
  const std::lock_guard lock(mutex_);
  for (auto& [begin, allocation] : allocations_) {
    if (allocation.opens > 0 && allocation.opened.process == handle.process &&
        allocation.opened.id == handle.id) {
      ++allocation.opens;
      return begin;
    }
  }
  const std::string path =
      "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.fd);
  UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid()) return nullptr;
  void* const pages = mmap(nullptr, Pages(handle.size_bytes), PROT_NONE, MAP_SHARED, file.get(), 0);
  if (pages == MAP_FAILED) return nullptr;
  Allocation& opened = allocations_[static_cast<std::byte*>(pages)];
  opened = {handle.size_bytes, device, ++last_id_, std::move(file), UniqueFd()};
  opened.opened = handle;
  opened.opens = 1;
  return static_cast<std::byte*>(pages);
}

bool FakeMemory::Close(std::byte* mapping) {
  const std::lock_guard running(running_);
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(mapping);
  if (found == allocations_.end() || found->second.opens == 0) return false;
  if (--found->second.opens > 0) return true;
  munmap(mapping, Pages(found->second.size_bytes));
  allocations_.erase(found);
  return true;
}

uint64_t FakeMemory::AddCreated(Created created) {
  created.id = ++last_id_;
  created.references = 1;
  created_[++last_handle_] = std::move(created);
  return last_handle_;
}

void FakeMemory::EraseIfUnused(uint64_t handle) {
  const auto found = created_.find(handle);
  if (found->second.references == 0 && found->second.mappings == 0) created_.erase(found);
}

uint64_t FakeMemory::Create(size_t size_bytes, const Home& home, unsigned handle_types) {
  if (!IsWhole(size_bytes)) return 0;
  // As HomeOf() reads it.
  const std::string name =
      "fake cuMemCreate " + std::to_string(home.device) + " " + std::to_string(home.instance);
  UniqueFd file = MakeFile(size_bytes, name);
  if (!file.valid()) return 0;
  const std::lock_guard lock(mutex_);
  return AddCreated({.pages = std::move(file),
                     .size_bytes = size_bytes,
                     .device = home.device,
                     .handle_types = handle_types});
}

uint64_t FakeMemory::Retain(std::byte* address) {
  const std::lock_guard lock(mutex_);
  const auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return 0;
  const auto& [begin, allocation] = *std::prev(after);
  if (address >= begin + allocation.size_bytes || allocation.created == 0) return 0;
  ++created_.at(allocation.created).references;
  return allocation.created;
}

bool FakeMemory::Release(uint64_t handle) {
  const std::lock_guard lock(mutex_);
  const auto found = created_.find(handle);
  if (found == created_.end() || found->second.references == 0) return false;
  --found->second.references;
  EraseIfUnused(handle);
  return true;
}

int FakeMemory::ExportFile(uint64_t handle, unsigned handle_type) const {
  const std::lock_guard lock(mutex_);
  const auto found = created_.find(handle);
  if (found == created_.end() || (found->second.handle_types & handle_type) == 0) return -1;
  return fcntl(found->second.pages.get(), F_DUPFD_CLOEXEC, 0);
}

std::optional<FakeMemory::Home> FakeMemory::HomeOf(int file) {
  char name[128] = {};
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  Home home;
  if (readlink(path.c_str(), name, sizeof(name) - 1) < 0 ||
      std::sscanf(name, "/memfd:fake cuMemCreate %d %d", &home.device, &home.instance) != 2) {
    return std::nullopt;
  }
  return home;
}

uint64_t FakeMemory::ImportFile(int file, const Home& home) {
  struct stat about{};
  if (fstat(file, &about) != 0) abort();
  const std::lock_guard lock(mutex_);
  // What was imported may be exported again, as with the real driver.
  return AddCreated({.pages = UniqueFd(fcntl(file, F_DUPFD_CLOEXEC, 0)),
                     .size_bytes = static_cast<size_t>(about.st_size),
                     .device = home.device,
                     .handle_types = 1});
}

std::byte* FakeMemory::Reserve(size_t size_bytes) {
  if (!IsWhole(size_bytes)) return nullptr;
  const size_t more_bytes = size_bytes + kGranularityBytes;
  void* const found =
      mmap(nullptr, more_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(found);
  const size_t before =
      (kGranularityBytes - reinterpret_cast<uintptr_t>(found) % kGranularityBytes) %
      kGranularityBytes;
  if (before > 0) munmap(first, before);
  munmap(first + before + size_bytes, kGranularityBytes - before);
  const std::lock_guard lock(mutex_);
  reserved_[first + before] = size_bytes;
  return first + before;
}

bool FakeMemory::FreeAddresses(std::byte* begin, size_t size_bytes) {
  const std::lock_guard running(running_);
  const std::lock_guard lock(mutex_);
  const auto found = reserved_.find(begin);
  const auto mapped = allocations_.lower_bound(begin);
  if (found == reserved_.end() || found->second != size_bytes ||
      (mapped != allocations_.end() && mapped->first < begin + size_bytes)) {
    return false;
  }
  munmap(begin, size_bytes);
  reserved_.erase(found);
  return true;
}

bool FakeMemory::Map(std::byte* begin, size_t size_bytes, uint64_t handle) {
  const std::lock_guard running(running_);
  const std::lock_guard lock(mutex_);
  const auto created = created_.find(handle);
  const auto after = reserved_.upper_bound(begin);
  if (created == created_.end() || after == reserved_.begin() || !IsWhole(size_bytes) ||
      size_bytes > created->second.size_bytes ||
      reinterpret_cast<uintptr_t>(begin) % kGranularityBytes != 0) {
    return false;
  }
  const auto& [first, reserved_bytes] = *std::prev(after);
  const auto next = allocations_.upper_bound(begin);
  const bool mapped_behind = next != allocations_.end() && next->first < begin + size_bytes;
  const bool mapped_before = next != allocations_.begin() &&
                             std::prev(next)->first + std::prev(next)->second.size_bytes > begin;
  const auto offset = static_cast<size_t>(begin - first);
  if (offset > reserved_bytes || size_bytes > reserved_bytes - offset || mapped_before ||
      mapped_behind) {
    return false;
  }
  if (mmap(begin, size_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, created->second.pages.get(), 0) ==
      MAP_FAILED) {
    return false;
  }
  ++created->second.mappings;
  Allocation& mapping = allocations_[begin];
  mapping = {size_bytes, created->second.device, created->second.id,
             UniqueFd(fcntl(created->second.pages.get(), F_DUPFD_CLOEXEC, 0)), UniqueFd()};
  mapping.created = handle;
  mapping.allowed = 0;
  return true;
}

bool FakeMemory::Unmap(std::byte* begin, size_t size_bytes) {
  const std::lock_guard running(running_);
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(begin);
  if (found == allocations_.end() || found->second.created == 0 ||
      found->second.size_bytes != size_bytes) {
    return false;
  }
  if (mmap(begin, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
           -1, 0) == MAP_FAILED) {
    abort();
  }
  const uint64_t handle = found->second.created;
  allocations_.erase(found);
  --created_.at(handle).mappings;
  EraseIfUnused(handle);
  return true;
}

bool FakeMemory::Allow(std::byte* begin, size_t size_bytes, int device) {
  const std::lock_guard running(running_);
  const std::lock_guard lock(mutex_);
  std::byte* at = begin;
  std::vector<Allocation*> mappings;
  while (at < begin + size_bytes) {
    const auto found = allocations_.find(at);
    if (found == allocations_.end() || found->second.created == 0) return false;
    mappings.push_back(&found->second);
    at += found->second.size_bytes;
  }
  if (at != begin + size_bytes) return false;
  for (Allocation* mapping : mappings) mapping->allowed |= 1u << device;
  return true;
}

void FakeMemory::Flush(int device) {
  const std::lock_guard lock(mutex_);
  for (auto& [begin, allocation] : allocations_) {
    if (allocation.device != device || !allocation.inbound.valid()) continue;
    const size_t size_bytes = allocation.flushed.size();
    const std::vector<std::byte> now = ReadFile(allocation.inbound, size_bytes);
    if (now == allocation.flushed) continue;
    for (size_t i = 0; i < size_bytes; ++i) {
      if (now[i] != allocation.flushed[i]) WriteFile(allocation.pages, now, i, 1);
    }
    allocation.flushed = now;
  }
}

bool FakeMemory::Free(std::byte* memory) {
  const std::lock_guard running(running_);
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(memory);
  if (found == allocations_.end() || found->second.opens > 0 || found->second.created != 0) {
    return false;
  }
  munmap(memory, Pages(found->second.size_bytes));
  allocations_.erase(found);
  return true;
}

int FakeMemory::DeviceOf(const std::byte* address) const {
  const std::lock_guard lock(mutex_);
  auto after = allocations_.upper_bound(const_cast<std::byte*>(address));
  if (after == allocations_.begin()) return -1;
  const auto& [begin, allocation] = *std::prev(after);
  return address < begin + allocation.size_bytes ? allocation.device : -1;
}

bool FakeMemory::Pin(std::byte* memory, size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  return pinned_.emplace(memory, size_bytes).second;
}

bool FakeMemory::Unpin(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  return pinned_.erase(memory) == 1;
}

bool FakeMemory::IsPinned(const std::byte* address) const {
  const std::lock_guard lock(mutex_);
  auto after = pinned_.upper_bound(const_cast<std::byte*>(address));
  if (after == pinned_.begin()) return false;
  const auto& [begin, size_bytes] = *std::prev(after);
  return address < begin + size_bytes;
}

void FakeMemory::Hold(bool is_held) {
  const std::lock_guard running(running_);
  is_held_ = is_held;
  held_changed_.notify_all();
}

void FakeMemory::RunAsGpu(int device, const std::function<void()>& work) {
  std::unique_lock running(running_);
  held_changed_.wait(running, [this] { return !is_held_; });
  Protect(PROT_READ | PROT_WRITE, 1u << device);
  work();
  Protect(PROT_NONE, kAllDevices);
  ShowToNics();
}

// NICs read what the device has written at once; only the other way waits for a flush.
void FakeMemory::ShowToNics() {
  const std::lock_guard lock(mutex_);
  for (auto& [begin, allocation] : allocations_) {
    if (!allocation.inbound.valid()) continue;
    const size_t size_bytes = allocation.flushed.size();
    const std::vector<std::byte> now = ReadFile(allocation.pages, size_bytes);
    if (now == allocation.flushed) continue;
    for (size_t i = 0; i < size_bytes; ++i) {
      if (now[i] != allocation.flushed[i]) WriteFile(allocation.inbound, now, i, 1);
    }
    allocation.flushed = now;
  }
}

void FakeMemory::Protect(int protection, unsigned devices) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, allocation] : allocations_) {
    if ((allocation.allowed & devices) == 0) continue;
    mprotect(begin, Pages(allocation.size_bytes), protection);
  }
}

size_t FakeMemory::allocation_count() const {
  const std::lock_guard lock(mutex_);
  return allocations_.size();
}

size_t FakeMemory::pin_count() const {
  const std::lock_guard lock(mutex_);
  return pinned_.size();
}

size_t FakeMemory::handle_count() const {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& [handle, created] : created_) {
    if (created.references > 0) ++count;
  }
  return count;
}

size_t FakeMemory::reservation_count() const {
  const std::lock_guard lock(mutex_);
  return reserved_.size();
}

uint64_t FakeEvent::Record() {
  const std::lock_guard lock(mutex_);
  return ++recorded_;
}

void FakeEvent::Complete(uint64_t recording) {
  const std::lock_guard lock(mutex_);
  if (recording > completed_) completed_ = recording;
  changed_.notify_all();
}

uint64_t FakeEvent::recorded() const {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

bool FakeEvent::IsCompleted() const {
  const std::lock_guard lock(mutex_);
  return completed_ >= recorded_;
}

void FakeEvent::Await(uint64_t recording) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return completed_ >= recording; });
}

FakeStream::FakeStream(int device) : device_(device), state_(std::make_shared<State>()) {
  std::thread([state = state_] { Main(state); }).detach();
}

FakeStream::~FakeStream() {
  const std::lock_guard lock(state_->mutex);
  state_->ending = true;
  state_->changed.notify_all();
}

void FakeStream::Queue(std::function<void()> work) {
  const std::lock_guard lock(state_->mutex);
  state_->work.push_back(std::move(work));
  ++state_->queued;
  state_->changed.notify_all();
}

void FakeStream::Finish() {
  std::unique_lock lock(state_->mutex);
  const uint64_t last = state_->queued;
  state_->changed.wait(lock, [&] { return state_->done >= last; });
}

void FakeStream::Main(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] { return state->ending || !state->work.empty(); });
    if (state->work.empty()) return;
    const std::function<void()> work = std::move(state->work.front());
    state->work.pop_front();
    lock.unlock();
    work();
    lock.lock();
    ++state->done;
    state->changed.notify_all();
  }
}

}  // namespace waybill
