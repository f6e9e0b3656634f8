// SPDX-License-Identifier: Apache-2.0

// A stream whose work does not end until it is released.
#ifndef WAYBILL_TESTING_FAKE_CUDA_HELD_STREAM_H_
#define WAYBILL_TESTING_FAKE_CUDA_HELD_STREAM_H_

#include <future>
#include <memory>

struct CUevent_st;
struct CUstream_st;

namespace waybill {

// A stream of device 0.
class HeldStream {
 public:
  HeldStream();
  ~HeldStream();  // Releases the work.

  // Returns an event recorded behind the held work. It is destroyed with this object.
  CUevent_st* RecordedEvent();
  // The same of what is recorded in it now.
  CUevent_st* RecordAnotherEvent();
  CUstream_st* stream() const { return stream_; }
  // Releases the held work. Further calls do nothing.
  void Release();

 private:
  struct Gate {
    std::promise<void> opened;
    bool is_open = false;
  };
  const std::unique_ptr<Gate> gate_;
  CUstream_st* stream_ = nullptr;
  CUevent_st* event_ = nullptr;
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_FAKE_CUDA_HELD_STREAM_H_
