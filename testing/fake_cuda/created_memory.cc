// SPDX-License-Identifier: Apache-2.0

#include "testing/fake_cuda/created_memory.h"

#include <cuda.h>

#include <cstdlib>

namespace waybill {
namespace {

void Require(CUresult result) {
  if (result != CUDA_SUCCESS) std::abort();
}

CUdeviceptr AddressOf(const std::byte* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

}  // namespace

CreatedMemory::CreatedMemory(size_t allocation_count, Exportable exportable, int device)
    : allocation_count_(allocation_count), exportable_(exportable), device_(device) {
  CUdeviceptr begin = 0;
  Require(cuMemAddressReserve(&begin, size_bytes(), /*alignment=*/0, /*addr=*/0, /*flags=*/0));
  data_ = reinterpret_cast<std::byte*>(begin);
  Map();
}

CreatedMemory::~CreatedMemory() {
  Unmap();
  Require(cuMemAddressFree(AddressOf(data_), size_bytes()));
}

void CreatedMemory::Unmap() {
  while (first_mapped_ < allocation_count_) UnmapFirst();
}

void CreatedMemory::UnmapFirst() { UnmapOne(first_mapped_++); }

void CreatedMemory::Map() {
  for (size_t i = 0; i < allocation_count_; ++i) MapOne(i, device_);
  first_mapped_ = 0;
}

void CreatedMemory::MapLastOn(int device) {
  UnmapOne(allocation_count_ - 1);
  MapOne(allocation_count_ - 1, device);
}

void CreatedMemory::UnmapOne(size_t i) {
  Require(cuMemUnmap(AddressOf(data_ + i * kAllocationBytes), kAllocationBytes));
}

void CreatedMemory::MapOne(size_t i, int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  if (exportable_ == Exportable::kYes) {
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  const CUdeviceptr at = AddressOf(data_ + i * kAllocationBytes);
  CUmemGenericAllocationHandle handle = 0;
  Require(cuMemCreate(&handle, kAllocationBytes, &properties, /*flags=*/0));
  Require(cuMemMap(at, kAllocationBytes, /*offset=*/0, handle, /*flags=*/0));
  Require(cuMemRelease(handle));  // The mapping keeps it.
  const CUmemAccessDesc access = {.location = properties.location,
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  Require(cuMemSetAccess(at, kAllocationBytes, &access, 1));
}

}  // namespace waybill
