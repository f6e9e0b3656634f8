// SPDX-License-Identifier: Apache-2.0

#include "testing/fake_cuda/gpu.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <utility>

#include "testing/fake_cuda/dmabuf_parts.h"

namespace waybill {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kAlignmentBytes = 512;  // Of allocations.

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

// Writes what has changed in one file since the other was told of it into the other.
void Carry(const UniqueFd& from, const UniqueFd& to, std::vector<std::byte>& told) {
  if (!from.valid() || !to.valid()) return;
  const std::vector<std::byte> now = ReadFile(from, told.size());
  if (now == told) return;
  for (size_t begin = 0, end = 0; begin < now.size(); begin = end + 1) {
    for (end = begin; end < now.size() && now[end] != told[end];) ++end;
    if (end > begin) WriteFile(to, now, begin, end - begin);
  }
  told = now;
}

// One process at a time runs on a GPU. A file of the test's is locked meanwhile. A process that is
// stopped has the GPU for a slice of time only, as long as the others wait.
class Turn {
 public:
  explicit Turn(int device) {
    static const char* const folder = std::getenv("TEST_TMPDIR");
    if (folder == nullptr) return;
    const std::string path = std::string(folder) + "/fake GPU " + std::to_string(device);
    file_ = UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
  }

 private:
  UniqueFd file_;  // Closed, it is not locked any more.
};

bool IsWhole(size_t size_bytes) {
  return size_bytes > 0 && size_bytes % FakeMemory::kGranularityBytes == 0;
}

size_t Pages(size_t size_bytes) { return (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

FakeMemory& FakeMemory::Get() {
  static FakeMemory& memory = *new FakeMemory;
  return memory;
}

std::shared_ptr<FakeMemory::Block> FakeMemory::MakeBlock(UniqueFd pages, size_t size_bytes,
                                                         int device) {
  if (!pages.valid()) return nullptr;
  void* const at = mmap(nullptr, Pages(size_bytes), PROT_NONE, MAP_SHARED, pages.get(), 0);
  if (at == MAP_FAILED) return nullptr;
  auto block = std::make_shared<Block>();
  block->begin = static_cast<std::byte*>(at);
  block->size_bytes = Pages(size_bytes);
  block->device = device;
  block->id = ++last_id_;
  block->pages = std::move(pages);
  return block;
}

FakeMemory::Allocations::const_iterator FakeMemory::At(const std::byte* address) const {
  const auto after = allocations_.upper_bound(const_cast<std::byte*>(address));
  if (after == allocations_.begin()) return allocations_.end();
  const auto found = std::prev(after);
  return address < found->first + found->second.size_bytes ? found : allocations_.end();
}

FakeMemory::Allocations::iterator FakeMemory::At(const std::byte* address) {
  return allocations_.erase(std::as_const(*this).At(address), std::as_const(*this).At(address));
}

std::vector<FakeMemory::Block*> FakeMemory::Blocks() const {
  std::vector<Block*> blocks;
  for (const auto& [begin, allocation] : allocations_) {
    // Those of a block are neighbours.
    if (blocks.empty() || blocks.back() != allocation.block.get()) {
      blocks.push_back(allocation.block.get());
    }
  }
  return blocks;
}

FakeMemory::Block* FakeMemory::BlockAt(const std::byte* address) const {
  for (Block* const block : Blocks()) {
    if (address >= block->begin && address < block->begin + block->size_bytes) return block;
  }
  return nullptr;
}

std::byte* FakeMemory::Allocate(size_t size_bytes, int device) {
  const std::lock_guard lock(mutex_);
  if (size_bytes >= kSharedBytes) {
    const auto block = MakeBlock(MakeFile(Pages(size_bytes)), size_bytes, device);
    if (block == nullptr) return nullptr;
    allocations_[block->begin] = {.size_bytes = size_bytes, .block = block};
    return block->begin;
  }
  Shared& shared = shared_[device];
  if (shared.block == nullptr || size_bytes > kSharedBytes - shared.used_bytes) {
    shared = {MakeBlock(MakeFile(kSharedBytes), kSharedBytes, device), 0};
    if (shared.block == nullptr) return nullptr;
  }
  std::byte* const begin = shared.block->begin + shared.used_bytes;
  shared.used_bytes += (size_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  allocations_[begin] = {.size_bytes = size_bytes, .block = shared.block};
  return begin;
}

int FakeMemory::Export(std::byte* begin, size_t size_bytes, bool ordered) {
  const std::lock_guard lock(mutex_);
  if (size_bytes == 0 || size_bytes % kPageBytes != 0) return -1;
  std::vector<DmabufPart> parts;
  int device = -1;
  for (std::byte* at = begin; at < begin + size_bytes; at += parts.back().size_bytes) {
    Block* const block = BlockAt(at);
    if (block == nullptr) return -1;
    const auto offset = static_cast<size_t>(at - block->begin);
    if (offset % kPageBytes != 0) return -1;
    if (at != begin) {
      // Only memory of cuMemCreate() is mapped side by side on purpose.
      const auto first = allocations_.find(block->begin);
      if (first == allocations_.end() || first->second.created == 0 || block->device != device) {
        return -1;
      }
    }
    device = block->device;
    const size_t left_bytes = size_bytes - static_cast<size_t>(at - begin);
    parts.push_back(
        {FileForNics(*block, ordered), offset, std::min(block->size_bytes - offset, left_bytes)});
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

int FakeMemory::FileForNics(Block& block, bool ordered) {
  if (ordered) return block.pages.get();
  if (!block.inbound.valid()) {
    block.inbound = MakeFile(block.size_bytes);
    block.flushed = ReadFile(block.pages, block.size_bytes);
    WriteFile(block.inbound, block.flushed, 0, block.size_bytes);
  }
  return block.inbound.get();
}

FakeMemory::Place FakeMemory::Find(std::byte* address) const {
  const std::lock_guard lock(mutex_);
  const auto found = At(address);
  if (found == allocations_.end()) return {};
  const auto& [begin, allocation] = *found;
  Place place{.begin = begin,
              .size_bytes = allocation.size_bytes,
              .id = allocation.block->id,
              .managed = allocation.managed};
  if (const auto created = created_.find(allocation.created); created != created_.end()) {
    place.is_created = true;
    place.handle_types = created->second.handle_types;
  }
  return place;
}

void FakeMemory::Remap(std::byte* address) {
  const std::lock_guard lock(mutex_);
  const auto& [begin, allocation] = *At(address);
  Block& block = *allocation.block;
  UniqueFd file = MakeFile(block.size_bytes);
  // What shares the block keeps its bytes.
  std::vector<std::byte> bytes = ReadFile(block.pages, block.size_bytes);
  std::fill_n(bytes.begin() + (begin - block.begin), allocation.size_bytes, std::byte{0});
  WriteFile(file, bytes, 0, block.size_bytes);
  if (mmap(block.begin, block.size_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file.get(), 0) ==
      MAP_FAILED) {
    abort();
  }
  block.pages = std::move(file);
  block.inbound.Reset();
  block.id = ++last_id_;
}

void FakeMemory::MakeManaged(std::byte* address) {
  const std::lock_guard lock(mutex_);
  At(address)->second.managed = true;
}

FakeMemory::Handle FakeMemory::HandleOf(std::byte* begin) const {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(begin);
  if (found == allocations_.end() || found->second.created != 0 || found->second.opens > 0) {
    return {};
  }
  const Block& block = *found->second.block;
  return {.process = getpid(),
          .fd = block.pages.get(),
          .size_bytes = block.size_bytes,
          .offset_bytes = static_cast<uint64_t>(begin - block.begin),
          .id = block.id};
}

std::byte* FakeMemory::Open(const Handle& handle, int device) {
  const std::lock_guard lock(mutex_);
  for (auto& [begin, allocation] : allocations_) {
    if (allocation.opens > 0 && allocation.opened.process == handle.process &&
        allocation.opened.id == handle.id) {
      ++allocation.opens;
      return begin + handle.offset_bytes;
    }
  }
  const std::string path =
      "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.fd);
  const auto block =
      MakeBlock(UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC)), handle.size_bytes, device);
  if (block == nullptr) return nullptr;
  allocations_[block->begin] = {
      .size_bytes = handle.size_bytes, .block = block, .opened = handle, .opens = 1};
  return block->begin + handle.offset_bytes;
}

bool FakeMemory::Close(std::byte* mapping) {
  const std::lock_guard running(running_);
  const std::lock_guard lock(mutex_);
  const auto found = At(mapping);
  if (found == allocations_.end() || found->second.opens == 0) return false;
  if (--found->second.opens > 0) return true;
  munmap(found->first, found->second.block->size_bytes);
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
  const auto found = At(address);
  if (found == allocations_.end() || found->second.created == 0) return 0;
  ++created_.at(found->second.created).references;
  return found->second.created;
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
  auto block = std::make_shared<Block>();
  block->begin = begin;
  block->size_bytes = size_bytes;
  block->device = created->second.device;
  block->id = created->second.id;
  block->pages = UniqueFd(fcntl(created->second.pages.get(), F_DUPFD_CLOEXEC, 0));
  allocations_[begin] = {
      .size_bytes = size_bytes, .block = std::move(block), .created = handle, .allowed = 0};
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
  for (Block* const block : Blocks()) {
    if (block->device == device) Carry(block->inbound, block->pages, block->flushed);
  }
}

bool FakeMemory::Free(std::byte* memory) {
  const std::lock_guard running(running_);
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(memory);
  if (found == allocations_.end() || found->second.opens > 0 || found->second.created != 0) {
    return false;
  }
  const std::shared_ptr<Block> block = std::move(found->second.block);
  allocations_.erase(found);
  const bool is_shared = std::ranges::any_of(
      allocations_, [&](const auto& entry) { return entry.second.block == block; });
  if (is_shared) return true;
  if (shared_[block->device].block == block) shared_[block->device] = {};
  munmap(block->begin, block->size_bytes);
  return true;
}

int FakeMemory::DeviceOf(const std::byte* address) const {
  const std::lock_guard lock(mutex_);
  const auto found = At(address);
  return found == allocations_.end() ? -1 : found->second.block->device;
}

int FakeMemory::DeviceOfPages(const std::byte* address) const {
  const std::lock_guard lock(mutex_);
  const Block* const block = BlockAt(address);
  return block == nullptr ? -1 : block->device;
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
  const Turn turn(device);
  Protect(PROT_READ | PROT_WRITE, 1u << device);
  work();
  Protect(PROT_NONE, kAllDevices);
  ShowToNics();
}

// NICs read what the device has written at once; only the other way waits for a flush.
void FakeMemory::ShowToNics() {
  const std::lock_guard lock(mutex_);
  for (Block* const block : Blocks()) Carry(block->pages, block->inbound, block->flushed);
}

void FakeMemory::Protect(int protection, unsigned devices) const {
  const std::lock_guard lock(mutex_);
  const Block* last = nullptr;
  for (const auto& [begin, allocation] : allocations_) {
    const Block* const block = allocation.block.get();
    if ((allocation.allowed & devices) == 0 || block == last) continue;
    mprotect(block->begin, block->size_bytes, protection);
    last = block;
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

// The streams' states, some of which are gone.
struct FakeStream::Streams {
  std::mutex mutex;
  std::vector<std::weak_ptr<State>> states;
};

FakeStream::Streams& FakeStream::AllStreams() {
  static Streams& streams = *new Streams;
  return streams;
}

FakeStream::FakeStream(int device) : device_(device) {
  state_->device = device;
  {
    Streams& streams = AllStreams();
    const std::lock_guard lock(streams.mutex);
    std::erase_if(streams.states, [](const auto& state) { return state.expired(); });
    streams.states.push_back(state_);
  }
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

void FakeStream::Finish() { Finish(*state_); }

void FakeStream::FinishAll(int device) {
  std::vector<std::weak_ptr<State>> states;
  {
    const std::lock_guard lock(AllStreams().mutex);
    states = AllStreams().states;
  }
  for (const std::weak_ptr<State>& each : states) {
    const std::shared_ptr<State> state = each.lock();
    if (state != nullptr && state->device == device) Finish(*state);
  }
}

void FakeStream::Finish(State& state) {
  std::unique_lock lock(state.mutex);
  const uint64_t last = state.queued;
  state.changed.wait(lock, [&] { return state.done >= last; });
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
