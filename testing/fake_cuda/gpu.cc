#include "testing/fake_cuda/gpu.h"

#include <sys/mman.h>

#include <iterator>
#include <utility>

namespace waybill {
namespace {

constexpr size_t kPageBytes = 4096;

size_t Pages(size_t size_bytes) { return (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

FakeMemory& FakeMemory::Get() {
  static FakeMemory& memory = *new FakeMemory;
  return memory;
}

std::byte* FakeMemory::Allocate(size_t size_bytes, int device) {
  void* const pages =
      mmap(nullptr, Pages(size_bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  const std::lock_guard lock(mutex_);
  allocations_[static_cast<std::byte*>(pages)] = {size_bytes, device};
  return static_cast<std::byte*>(pages);
}

bool FakeMemory::Free(std::byte* memory) {
  const std::lock_guard running(running_);
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(memory);
  if (found == allocations_.end()) return false;
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

void FakeMemory::RunAsGpu(const std::function<void()>& work) {
  const std::lock_guard running(running_);
  Protect(PROT_READ | PROT_WRITE);
  work();
  Protect(PROT_NONE);
}

void FakeMemory::Protect(int protection) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, allocation] : allocations_) {
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
