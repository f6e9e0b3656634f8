// SPDX-License-Identifier: Apache-2.0

#include "testing/gpu/segment.h"

#include <cuda.h>

#include <algorithm>

#include "core/base/status.h"
#include "core/device/device.h"
#include "kernels/cuda/driver_functions.h"

namespace waybill {
namespace {

using kernels::cuda::Driver;

absl::Status Check(const char* what, CUresult result) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(kernels::cuda::Explain(*Driver(), what, result));
}

CUdeviceptr AddressOf(const std::byte* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

}  // namespace

absl::StatusOr<std::unique_ptr<Segment>> Segment::Create(uint64_t size_bytes, uint64_t part_bytes) {
  WAYBILL_RETURN_IF_ERROR(FindGpu());
  const uint64_t count = std::max<uint64_t>(1, (size_bytes + part_bytes - 1) / part_bytes);
  std::unique_ptr<Segment> segment(new Segment(count, part_bytes));
  CUdeviceptr begin = 0;
  WAYBILL_RETURN_IF_ERROR(
      Check("cuMemAddressReserve",
            Driver()->cuMemAddressReserve_fn(&begin, count * part_bytes, /*alignment=*/0,
                                             /*addr=*/0, /*flags=*/0)));
  segment->data_ = reinterpret_cast<std::byte*>(begin);
  WAYBILL_RETURN_IF_ERROR(segment->Map());
  return segment;
}

Segment::~Segment() {
  Unmap();
  if (data_ != nullptr) Driver()->cuMemAddressFree_fn(AddressOf(data_), count_ * part_bytes_);
}

absl::Status Segment::Remap() {
  Unmap();
  return Map();
}

absl::Status Segment::Map() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CUmemAccessDesc access = {.location = properties.location,
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  for (; mapped_ < count_; ++mapped_) {
    const CUdeviceptr at = AddressOf(data_ + mapped_ * part_bytes_);
    CUmemGenericAllocationHandle handle = 0;
    WAYBILL_RETURN_IF_ERROR(
        Check("cuMemCreate", Driver()->cuMemCreate_fn(&handle, part_bytes_, &properties, 0)));
    const CUresult mapped = Driver()->cuMemMap_fn(at, part_bytes_, /*offset=*/0, handle, 0);
    Driver()->cuMemRelease_fn(handle);  // The mapping keeps it.
    WAYBILL_RETURN_IF_ERROR(Check("cuMemMap", mapped));
    WAYBILL_RETURN_IF_ERROR(
        Check("cuMemSetAccess", Driver()->cuMemSetAccess_fn(at, part_bytes_, &access, 1)));
  }
  return absl::OkStatus();
}

void Segment::Unmap() {
  for (; mapped_ > 0; --mapped_) {
    Driver()->cuMemUnmap_fn(AddressOf(data_ + (mapped_ - 1) * part_bytes_), part_bytes_);
  }
}

}  // namespace waybill
