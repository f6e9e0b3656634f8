// SPDX-License-Identifier: Apache-2.0

#include "testing/fake_cuda/held_stream.h"

#include <cuda.h>

#include <utility>

namespace waybill {
namespace {

// As frameworks make their streams and events, without harm to a capture.
class RelaxedCapture {
 public:
  RelaxedCapture() { cuThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace

HeldStream::HeldStream() : gate_(std::make_unique<Gate>()) {
  const RelaxedCapture relaxed;
  CUcontext context = nullptr;
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxPushCurrent(context);
  cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING);
  cuCtxPopCurrent(&context);
  cuLaunchHostFunc(
      stream_, [](void* gate) { static_cast<Gate*>(gate)->opened.get_future().wait(); },
      gate_.get());
  cuEventRecord(event_, stream_);
}

HeldStream::~HeldStream() {
  const RelaxedCapture relaxed;
  Release();
  cuStreamSynchronize(stream_);
  cuEventDestroy(event_);
  cuStreamDestroy(stream_);
}

CUevent_st* HeldStream::RecordedEvent() { return event_; }

CUevent_st* HeldStream::RecordAnotherEvent() {
  cuEventRecord(event_, stream_);
  return event_;
}

void HeldStream::Release() {
  if (!std::exchange(gate_->is_open, true)) gate_->opened.set_value();
}

}  // namespace waybill
