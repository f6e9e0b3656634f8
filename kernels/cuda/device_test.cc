// The driver is a fake one; its memory ends who touches it from the host.

#include "kernels/cuda/device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/leaf_sum.h"
#include "kernels/cuda/rows.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/fake_cuda/held_stream.h"

namespace waybill::kernels::cuda {
namespace {

class DeviceTest : public testing::Test {
 protected:
  DeviceTest() {
    EXPECT_EQ(Device::Open(0, device_).reason(), "");
    EXPECT_EQ(device_->MakeStream(stream_).reason(), "");
  }
  ~DeviceTest() override {
    for (void* memory : memory_) device_->Free(memory);
    device_->DestroyStream(stream_);
    EXPECT_EQ(FakeCudaNow().allocations, 0u);
    EXPECT_EQ(FakeCudaNow().streams, 0u);
  }

  uint8_t* Allocate(size_t size_bytes) {
    void* memory = nullptr;
    EXPECT_EQ(device_->Allocate(size_bytes, memory).reason(), "");
    memory_.push_back(memory);
    return static_cast<uint8_t*>(memory);
  }

  std::shared_ptr<Device> device_;
  Stream stream_ = nullptr;
  std::vector<void*> memory_;
};

TEST_F(DeviceTest, WhatGoesThereComesBack) {
  const std::vector<uint8_t> sent = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<uint8_t> got(8);
  uint8_t* const a = Allocate(8);
  uint8_t* const b = Allocate(8);
  ASSERT_TRUE(device_->Copy(a, sent.data(), 8, stream_).ok());
  ASSERT_TRUE(CopyRows(b, 4, a, 4, 2, 4, LeafSum(), stream_).ok());
  ASSERT_TRUE(device_->Clear(b, 1, stream_).ok());
  ASSERT_TRUE(device_->Copy(got.data(), b, 8, stream_).ok());
  ASSERT_TRUE(device_->Finish(stream_).ok());
  EXPECT_EQ(got, (std::vector<uint8_t>{0, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_F(DeviceTest, IsFoundByItsMemory) {
  uint8_t* const memory = Allocate(10'000);
  int ordinal = -1;
  EXPECT_EQ(FindDevice(memory + 1, 9'999, ordinal).reason(), "");
  EXPECT_EQ(ordinal, 0);
  std::shared_ptr<Device> other;
  ASSERT_TRUE(Device::Open(1, other).ok());
  void* its = nullptr;
  ASSERT_TRUE(other->Allocate(4, its).ok());
  EXPECT_TRUE(FindDevice(its, 4, ordinal).ok());
  EXPECT_EQ(ordinal, 1);
  other->Free(its);
}

TEST_F(DeviceTest, MemoryThatIsNoDevicesIsSaidToBeWhatItIs) {
  std::vector<uint8_t> host(4096);
  int ordinal = -1;
  EXPECT_EQ(FindDevice(host.data(), 1, ordinal).reason(),
            "no memory of a GPU: the driver does not know it");
  ASSERT_TRUE(device_->Pin(host.data(), host.size()).ok());
  EXPECT_EQ(FindDevice(host.data(), 1, ordinal).reason(), "no memory of a GPU: it is host memory");
  device_->Unpin(host.data());
  uint8_t* const memory = Allocate(16);
  EXPECT_FALSE(FindDevice(memory, 1 << 20, ordinal).ok());
}

TEST_F(DeviceTest, AnEventIsToldOfWhenWhatIsBeforeItIsDone) {
  HeldStream busy;
  std::promise<void> passed;
  std::future<void> is_passed = passed.get_future();
  ASSERT_TRUE(device_->After(busy.RecordedEvent(), [&] { passed.set_value(); }).ok());
  // Another stream's work goes on, and ends, while that one waits.
  uint8_t* const memory = Allocate(4);
  ASSERT_TRUE(device_->Clear(memory, 4, stream_).ok());
  ASSERT_TRUE(device_->Finish(stream_).ok());
  EXPECT_EQ(is_passed.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  busy.Release();
  is_passed.wait();
}

TEST_F(DeviceTest, ALaunchThatFailsNamesTheKernel) {
  uint8_t* const memory = Allocate(64);
  FakeCudaFail(0);
  const Outcome outcome = CopyRows(memory, 16, memory + 32, 16, 1, 16, LeafSum(), stream_);
  FakeCudaFail(-1);
  EXPECT_NE(outcome.reason().find("launch WaybillRows16: cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED"),
            std::string::npos)
      << outcome.reason();
}

TEST(Device, OneThatIsNotThereIsNamed) {
  std::shared_ptr<Device> device;
  EXPECT_EQ(Device::Open(7, device).reason().rfind("open GPU 7: ", 0), 0u);
}

}  // namespace
}  // namespace waybill::kernels::cuda
