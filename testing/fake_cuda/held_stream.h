// A stream whose work does not end before it is told to.
#ifndef WAYBILL_TESTING_FAKE_CUDA_HELD_STREAM_H_
#define WAYBILL_TESTING_FAKE_CUDA_HELD_STREAM_H_

#include <future>
#include <memory>

struct CUevent_st;
struct CUstream_st;

namespace waybill {

// On device 0.
class HeldStream {
 public:
  HeldStream();
  ~HeldStream();  // Released before.

  // An event that was recorded behind what is held; destroyed with this.
  CUevent_st* RecordedEvent();
  // Lets it go on; again it does nothing.
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
