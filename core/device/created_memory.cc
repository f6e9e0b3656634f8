// SPDX-License-Identifier: Apache-2.0

#include "core/device/created_memory.h"

#include <cuda.h>

#include <bit>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/device/driver_calls.h"
#include "core/device/gpu_survey.h"

namespace waybill {
namespace {

constexpr auto kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr uint64_t kMostBytes = uint64_t{1} << 47;  // No process has more addresses.

}  // namespace

absl::StatusOr<std::vector<CreatedPart>> FindCreatedParts(const Device& device,
                                                          const MemorySpan& memory) {
  std::vector<CreatedPart> parts;
  const UsingContext current(device.context());
  const CUdeviceptr begin = AddressOf(memory.data), end = begin + memory.size_bytes;
  for (CUdeviceptr at = begin; at < end;) {
    CUdeviceptr base = 0;
    size_t size_bytes = 0;
    const CUresult found = Driver()->cuMemGetAddressRange_fn(&base, &size_bytes, at);
    if (found != CUDA_SUCCESS || base + size_bytes <= at) {
      return absl::FailedPreconditionError(kernels::cuda::Explain(
          *Driver(),
          absl::StrCat("byte ", at - begin, " of ", memory.size_bytes, " is no memory of a GPU"),
          found));
    }
    uint64_t types = 0;
    if (GetPointerAttribute(types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at) != CUDA_SUCCESS ||
        (types & kFile) == 0) {
      return absl::UnimplementedError(absl::StrCat(
          "no other process can open byte ", at - begin, " of ", memory.size_bytes,
          ": its allocation was not created with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (its "
          "handle types are ",
          types, "); create it with that type, or allocate with cudaMalloc()"));
    }
    parts.push_back({std::bit_cast<std::byte*>(base), size_bytes});
    at = base + size_bytes;
  }
  return parts;
}

absl::StatusOr<UniqueFd> ExportPart(const Device& device, const CreatedPart& part) {
  const UsingContext current(device.context());
  CUmemGenericAllocationHandle handle = 0;
  int fd = -1;
  CUresult result = Driver()->cuMemRetainAllocationHandle_fn(&handle, part.begin);
  if (result == CUDA_SUCCESS) {
    result = Driver()->cuMemExportToShareableHandle_fn(&fd, handle, kFile, /*flags=*/0);
    Driver()->cuMemRelease_fn(handle);
  }
  WAYBILL_RETURN_IF_ERROR(
      Check(absl::StrCat("export an allocation of ", part.size_bytes, " bytes to other processes"),
            result));
  return UniqueFd(fd);
}

absl::StatusOr<PartHandle> PartHandle::Import(std::shared_ptr<Device> device, const UniqueFd& file,
                                              uint64_t size_bytes) {
  const std::string what =
      absl::StrCat("import an allocation of ", size_bytes, " bytes of another process");
  if (!file.valid()) return absl::InvalidArgumentError(absl::StrCat(what, ": no file came along"));
  const UsingContext current(device->context());
  CUmemGenericAllocationHandle handle = 0;
  // The driver takes the descriptor itself for a pointer.
  void* const as_pointer = std::bit_cast<void*>(static_cast<intptr_t>(file.get()));
  WAYBILL_RETURN_IF_ERROR(
      Check(what, Driver()->cuMemImportFromShareableHandle_fn(&handle, as_pointer, kFile)));
  return PartHandle(std::move(device), handle, size_bytes);
}

PartHandle::~PartHandle() {
  if (handle_ == 0) return;
  const UsingContext current(device_->context());
  Driver()->cuMemRelease_fn(handle_);
}

absl::StatusOr<MappedParts> MappedParts::Map(std::shared_ptr<Device> device,
                                             absl::Span<const PartHandle> parts) {
  uint64_t size_bytes = 0;
  for (const PartHandle& part : parts) {
    if (part.size_bytes() > kMostBytes - size_bytes) {
      return absl::OutOfRangeError("allocations of more bytes than there are addresses");
    }
    size_bytes += part.size_bytes();
  }
  const std::string what = absl::StrCat("map ", parts.size(), " allocations of cuMemCreate(), ",
                                        size_bytes, " bytes, for ", NameOfGpu(device->ordinal()));
  const UsingContext current(device->context());
  CUdeviceptr begin = 0;
  WAYBILL_RETURN_IF_ERROR(Check(what, Driver()->cuMemAddressReserve_fn(&begin, size_bytes,
                                                                       /*alignment=*/0, /*addr=*/0,
                                                                       /*flags=*/0)));
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device->ordinal();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MappedParts mapped(std::move(device), {std::bit_cast<std::byte*>(begin), size_bytes});
  for (CUdeviceptr at = begin; const PartHandle& part : parts) {
    WAYBILL_RETURN_IF_ERROR(Check(what, Driver()->cuMemMap_fn(at, part.size_bytes(), /*offset=*/0,
                                                              part.handle(), /*flags=*/0)));
    mapped.mapped_bytes_.push_back(part.size_bytes());
    at += part.size_bytes();
  }
  WAYBILL_RETURN_IF_ERROR(
      Check(what, Driver()->cuMemSetAccess_fn(begin, size_bytes, &access, /*count=*/1)));
  return mapped;
}

MappedParts::~MappedParts() {
  if (bytes_.empty()) return;
  const UsingContext current(device_->context());
  CUdeviceptr at = AddressOf(bytes_.data());
  // Each by itself: the driver unmaps what was mapped at a time.
  for (const uint64_t size_bytes : mapped_bytes_) {
    Driver()->cuMemUnmap_fn(at, size_bytes);
    at += size_bytes;
  }
  Driver()->cuMemAddressFree_fn(AddressOf(bytes_.data()), bytes_.size());
}

absl::StatusOr<MappedParts> CreateForOthers(std::shared_ptr<Device> device, uint64_t size_bytes) {
  const std::string what = absl::StrCat("create ", size_bytes, " bytes of ",
                                        NameOfGpu(device->ordinal()), " for other processes");
  const UsingContext current(device->context());
  CUdevice handle = 0;
  int has_files = 0, has_rdma = 0;
  WAYBILL_RETURN_IF_ERROR(Check(what, Driver()->cuDeviceGet_fn(&handle, device->ordinal())));
  (void)Driver()->cuDeviceGetAttribute_fn(
      &has_files, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, handle);
  (void)Driver()->cuDeviceGetAttribute_fn(
      &has_rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, handle);
  if (has_files == 0) return absl::UnimplementedError(absl::StrCat(what, ": it has no files"));
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device->ordinal();
  properties.requestedHandleTypes = kFile;
  properties.allocFlags.gpuDirectRDMACapable = has_rdma != 0 ? 1 : 0;
  size_t granule_bytes = 0;
  CUmemGenericAllocationHandle created = 0;
  CUresult result = Driver()->cuMemGetAllocationGranularity_fn(&granule_bytes, &properties,
                                                               CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  const uint64_t whole_bytes =
      result == CUDA_SUCCESS ? (size_bytes + granule_bytes - 1) / granule_bytes * granule_bytes : 0;
  if (result == CUDA_SUCCESS) {
    result = Driver()->cuMemCreate_fn(&created, whole_bytes, &properties, /*flags=*/0);
  }
  WAYBILL_RETURN_IF_ERROR(Check(what, result));
  const PartHandle part(device, created, whole_bytes);
  return MappedParts::Map(std::move(device), {&part, 1});
}

}  // namespace waybill
