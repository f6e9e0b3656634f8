// What the fake driver's GPUs are made of: memory that only they touch, streams and events.
#ifndef WAYBILL_TESTING_FAKE_CUDA_GPU_H_
#define WAYBILL_TESTING_FAKE_CUDA_GPU_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace waybill {

// Device memory: pages that nobody can touch but while a GPU runs something, so that host code
// which takes a device's address for its own ends at once. Thread-safe.
class FakeMemory {
 public:
  static FakeMemory& Get();

  std::byte* Allocate(size_t size_bytes, int device);
  bool Free(std::byte* memory);
  // The device whose memory this address is in; -1: none's.
  int DeviceOf(const std::byte* address) const;

  bool Pin(std::byte* memory, size_t size_bytes);
  bool Unpin(std::byte* memory);
  bool IsPinned(const std::byte* address) const;

  // Runs `work` as a GPU: one at a time in the process, with all device memory open.
  void RunAsGpu(const std::function<void()>& work);

  size_t allocation_count() const;
  size_t pin_count() const;

 private:
  struct Allocation {
    size_t size_bytes;
    int device;
  };

  void Protect(int protection) const;

  std::mutex running_;
  mutable std::mutex mutex_;
  std::map<std::byte*, Allocation> allocations_;
  std::map<std::byte*, size_t> pinned_;
};

// A point in a stream, passed or not. Thread-safe.
class FakeEvent {
 public:
  uint64_t Record();  // Which recording this is.
  void Complete(uint64_t recording);
  uint64_t recorded() const;
  void Await(uint64_t recording) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  uint64_t recorded_ = 0;
  uint64_t completed_ = 0;
};

// Work in order, on a thread of its own. Thread-safe.
class FakeStream {
 public:
  explicit FakeStream(int device);
  // What is queued still runs, after the stream is gone.
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
