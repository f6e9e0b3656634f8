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
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"

namespace waybill {

// Device memory. Its pages are accessible only while a GPU runs something, so host code that uses a
// device address crashes at once. Thread-safe.
class FakeMemory {
 public:
  static FakeMemory& Get();

  std::byte* Allocate(size_t size_bytes, int device);
  bool Free(std::byte* memory);
  // Returns a descriptor of the pages of a range, positioned at its first byte; -1 if it is no
  // range of whole pages of one allocation. With `ordered` the device sees at once what is written
  // to them; else after Flush().
  int Export(std::byte* begin, size_t size_bytes, bool ordered);
  void Flush();

  // An allocation, by an address in it; a size of 0: there is none.
  struct Place {
    std::byte* begin = nullptr;
    size_t size_bytes = 0;
    uint64_t id = 0;  // Of its pages.
    bool managed = false;
    bool is_virtual = false;
  };
  Place Find(std::byte* address) const;
  // Puts fresh pages under the allocation. Those that were exported are not reached any more.
  void Remap(std::byte* address);
  // From now on it is managed memory.
  void MakeManaged(std::byte* address);
  // From now on it is memory of cuMemCreate().
  void MakeVirtual(std::byte* address);

  // Of an allocation, as other processes open it.
  struct Handle {
    int process = 0;
    int fd = -1;
    uint64_t size_bytes = 0;
    uint64_t id = 0;
    std::array<std::byte, 40> reserved = {};
  };
  Handle HandleOf(std::byte* begin) const;
  // Maps it for a device; again it is the same mapping. Null: there is no such process any more.
  std::byte* Open(const Handle& handle, int device);
  bool Close(std::byte* mapping);
  // Returns the device to whose memory the address belongs, or -1.
  int DeviceOf(const std::byte* address) const;

  bool Pin(std::byte* memory, size_t size_bytes);
  bool Unpin(std::byte* memory);
  bool IsPinned(const std::byte* address) const;

  // Runs `work` as a GPU does: with all device memory accessible, one at a time in the process.
  void RunAsGpu(const std::function<void()>& work);

  size_t allocation_count() const;
  size_t pin_count() const;

 private:
  struct Allocation {
    size_t size_bytes;
    int device;
    uint64_t id;
    UniqueFd pages;
    // What NICs reach, if what they write has to be flushed, and what both it and the pages had
    // when the one was last told of the other.
    UniqueFd inbound;
    std::vector<std::byte> flushed = {};
    bool managed = false;
    bool is_virtual = false;
    Handle opened = {};  // Of another process, which has it.
    int opens = 0;
  };

  void Protect(int protection) const;
  void ShowToNics();

  std::mutex running_;
  mutable std::mutex mutex_;
  std::map<std::byte*, Allocation> allocations_;
  std::map<std::byte*, size_t> pinned_;
  uint64_t last_id_ = 0;
};

// A point in a stream, which the stream has passed or not. Thread-safe.
class FakeEvent {
 public:
  uint64_t Record();  // Returns the number of the recording.
  void Complete(uint64_t recording);
  uint64_t recorded() const;
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

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> work;
    uint64_t queued = 0;
    uint64_t done = 0;
    bool ending = false;
  };
  static void Main(const std::shared_ptr<State>& state);

  const int device_;
  const std::shared_ptr<State> state_;
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_FAKE_CUDA_GPU_H_
