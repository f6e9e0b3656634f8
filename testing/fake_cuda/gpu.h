// SPDX-License-Identifier: Apache-2.0

// The parts of the fake driver's GPUs: memory that only they can touch, streams and events.
#ifndef WAYBILL_TESTING_FAKE_CUDA_GPU_H_
#define WAYBILL_TESTING_FAKE_CUDA_GPU_H_

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"

namespace waybill {

// Device memory. Its pages are accessible only while a GPU runs something, so host code that uses a
// device address crashes at once. Thread-safe.
class FakeMemory {
 public:
  static FakeMemory& Get();

  // What is smaller lies in a block of so many bytes, which others share. The real driver's have
  // 2 MiB.
  static constexpr size_t kSharedBytes = size_t{64} << 10;
  std::byte* Allocate(size_t size_bytes, int device);
  bool Free(std::byte* memory);
  // Returns a descriptor of the pages of a range, positioned at its first byte, or a list of
  // several (dmabuf_parts.h); -1 if it is no range of whole pages, or has a hole. With `ordered`
  // the device sees at once what is written to them; else after Flush().
  int Export(std::byte* begin, size_t size_bytes, bool ordered);
  void Flush(int device);

  // An allocation, by an address in it; a size of 0: there is none.
  struct Place {
    std::byte* begin = nullptr;
    size_t size_bytes = 0;
    uint64_t id = 0;  // Of its pages.
    bool managed = false;
    bool is_created = false;    // By cuMemCreate().
    unsigned handle_types = 0;  // By which that may be exported.
  };
  Place Find(std::byte* address) const;
  // Puts fresh pages under the allocation. Those that were exported are not reached any more.
  void Remap(std::byte* address);
  // From now on it is managed memory.
  void MakeManaged(std::byte* address);

  // Of an allocation, as other processes open it.
  struct Handle {
    int process = 0;
    int fd = -1;
    uint64_t size_bytes = 0;  // Of all that has these pages.
    uint64_t offset_bytes = 0;
    uint64_t id = 0;
    int instance = -1;  // The MIG instance whose memory it is, or -1.
    std::array<std::byte, 28> reserved = {};
  };
  Handle HandleOf(std::byte* begin) const;
  // Maps the pages for a device; again it is the same mapping. Returns where the allocation is in
  // them. Null: there is no such process any more.
  std::byte* Open(const Handle& handle, int device);
  bool Close(std::byte* mapping);

  // --- memory of cuMemCreate(), and the addresses under which it is mapped ---
  // Sizes and addresses are multiples of this.
  static constexpr size_t kGranularityBytes = size_t{2} << 20;

  // Where such memory is.
  struct Home {
    int device = 0;
    int instance = -1;  // The MIG instance, or -1.
  };
  // Creates memory without an address. Returns its handle, or 0.
  uint64_t Create(size_t size_bytes, const Home& home, unsigned handle_types);
  // Returns the handle of the memory that is mapped at the address, which counts as another
  // reference to it; 0: there is none.
  uint64_t Retain(std::byte* address);
  bool Release(uint64_t handle);
  // Returns a file by which another process imports the memory; -1: it was created without
  // `handle_type`, or there is no such handle.
  int ExportFile(uint64_t handle, unsigned handle_type) const;
  // Returns where the memory is of which that is such a file; empty: it is none.
  static std::optional<Home> HomeOf(int file);
  // Returns a handle of the memory that a process has exported.
  uint64_t ImportFile(int file, const Home& home);

  std::byte* Reserve(size_t size_bytes);
  // Fails if something is mapped there.
  bool FreeAddresses(std::byte* begin, size_t size_bytes);
  // Maps memory into reserved addresses. No device may use it there before Allow().
  bool Map(std::byte* begin, size_t size_bytes, uint64_t handle);
  // Fails unless exactly this was mapped at a time.
  bool Unmap(std::byte* begin, size_t size_bytes);
  // Lets a device use addresses of which all are mapped.
  bool Allow(std::byte* begin, size_t size_bytes, int device);

  // Returns the device to whose memory the address belongs, or -1.
  int DeviceOf(const std::byte* address) const;
  // Likewise of the pages, parts of which may be free.
  int DeviceOfPages(const std::byte* address) const;

  bool Pin(std::byte* memory, size_t size_bytes);
  bool Unpin(std::byte* memory);
  bool IsPinned(const std::byte* address) const;

  // Runs `work` as that GPU does: with the device memory accessible that it may use, one at a time
  // in the process.
  void RunAsGpu(int device, const std::function<void()>& work);
  // While it is so, RunAsGpu() waits before it runs anything.
  void Hold(bool is_held);

  size_t allocation_count() const;
  size_t pin_count() const;
  size_t handle_count() const;
  size_t reservation_count() const;

 private:
  // Memory of cuMemCreate(). It exists for as long as it has a handle or a mapping.
  struct Created {
    UniqueFd pages;
    size_t size_bytes = 0;
    int device = 0;
    unsigned handle_types = 0;
    uint64_t id = 0;
    int references = 0;
    int mappings = 0;
  };
  static constexpr unsigned kAllDevices = ~0u;

  // What is mapped, protected and exported together.
  struct Block {
    std::byte* begin = nullptr;
    size_t size_bytes = 0;  // Whole pages.
    int device = 0;
    uint64_t id = 0;
    UniqueFd pages;
    // What NICs reach, if what they write has to be flushed, and what both it and the pages had
    // when the one was last told of the other.
    UniqueFd inbound;
    std::vector<std::byte> flushed = {};
  };
  struct Allocation {
    size_t size_bytes = 0;
    std::shared_ptr<Block> block;
    bool managed = false;
    uint64_t created = 0;            // The handle of memory of cuMemCreate() that is mapped here.
    unsigned allowed = kAllDevices;  // A bit for each device that may use it.
    Handle opened = {};              // Of another process, which has it.
    int opens = 0;
  };
  using Allocations = std::map<std::byte*, Allocation>;
  // Small allocations are made here, as long as there is room.
  struct Shared {
    std::shared_ptr<Block> block;
    size_t used_bytes = 0;
  };

  // Maps a file. Null: that fails.
  std::shared_ptr<Block> MakeBlock(UniqueFd pages, size_t size_bytes, int device);
  // Returns what lies at the address, or the end.
  Allocations::const_iterator At(const std::byte* address) const;
  Allocations::iterator At(const std::byte* address);
  std::vector<Block*> Blocks() const;
  Block* BlockAt(const std::byte* address) const;
  void Protect(int protection, unsigned devices) const;
  void ShowToNics();
  static int FileForNics(Block& block, bool ordered);
  uint64_t AddCreated(Created created);
  void EraseIfUnused(uint64_t handle);

  std::mutex running_;
  bool is_held_ = false;  // With running_.
  std::condition_variable held_changed_;
  mutable std::mutex mutex_;
  Allocations allocations_;
  std::map<int, Shared> shared_;  // By device.
  std::map<std::byte*, size_t> pinned_;
  std::map<std::byte*, size_t> reserved_;
  std::map<uint64_t, Created> created_;  // By handle.
  uint64_t last_handle_ = 0;
  uint64_t last_id_ = 0;
};

// A point in a stream, which the stream has passed or not. Thread-safe.
class FakeEvent {
 public:
  uint64_t Record();  // Returns the number of the recording.
  void Complete(uint64_t recording);
  uint64_t recorded() const;
  bool IsCompleted() const;
  void Await(uint64_t recording) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  uint64_t recorded_ = 0;
  uint64_t completed_ = 0;
};

// Runs work in order on a thread of its own. Thread-safe.
class FakeStream {
 public:
  explicit FakeStream(int device);
  // Queued work still runs after the stream is destroyed.
  ~FakeStream();

  int device() const { return device_; }
  void Queue(std::function<void()> work);
  void Finish();
  // Waits for what is queued on all streams of a device.
  static void FinishAll(int device);

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> work;
    uint64_t queued = 0;
    uint64_t done = 0;
    bool ending = false;
    int device = 0;
  };
  struct Streams;
  static Streams& AllStreams();
  static void Finish(State& state);
  static void Main(const std::shared_ptr<State>& state);

  const int device_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_FAKE_CUDA_GPU_H_
