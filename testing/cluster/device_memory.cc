// SPDX-License-Identifier: Apache-2.0

#include "testing/cluster/device_memory.h"

#include <cstdlib>

namespace waybill {
namespace {

// There is no test where the memory cannot be had.
void Require(const absl::Status& status) {
  if (!status.ok()) std::abort();
}

}  // namespace

DeviceMemory::DeviceMemory(int ordinal)
    : device_(*Device::Open(ordinal)), stream_(*device_->MakeStream()) {}

DeviceMemory::~DeviceMemory() {
  for (void* memory : all_) device_->Free(memory);
  device_->DestroyStream(stream_);
}

MemorySpan DeviceMemory::Allocate(size_t size_bytes) {
  all_.push_back(*device_->Allocate(size_bytes));
  return {MemoryKind::kDevice, static_cast<std::byte*>(all_.back()), size_bytes};
}

void DeviceMemory::FreeFirst() {
  device_->Free(all_.front());
  all_.erase(all_.begin());
}

void DeviceMemory::Write(const MemorySpan& to, const std::byte* from) {
  Require(device_->Copy(to.data, from, to.size_bytes, stream_));
  Require(device_->Finish(stream_));
}

void DeviceMemory::Read(const MemorySpan& from, std::byte* to) {
  Require(device_->Copy(to, from.data, from.size_bytes, stream_));
  Require(device_->Finish(stream_));
}

}  // namespace waybill
