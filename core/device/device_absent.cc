// SPDX-License-Identifier: Apache-2.0

// Replaces device.cc in a build without a CUDA compiler: no device is ever found.

#include <cstdlib>
#include <memory>
#include <string>

#include "core/device/created_memory.h"
#include "core/device/device.h"
#include "core/device/gpu_survey.h"

namespace waybill {

absl::StatusOr<int> FindDevice(const void*, size_t) { return FindGpu(); }
absl::StatusOr<std::shared_ptr<Device>> Device::Open(int) { return FindGpu(); }

absl::StatusOr<std::vector<CreatedPart>> FindCreatedParts(const Device&, const MemorySpan&) {
  return FindGpu();
}
absl::StatusOr<UniqueFd> ExportPart(const Device&, const CreatedPart&) { return FindGpu(); }
absl::StatusOr<PartHandle> PartHandle::Import(std::shared_ptr<Device>, const UniqueFd&, uint64_t) {
  return FindGpu();
}
absl::StatusOr<MappedParts> CreateForOthers(std::shared_ptr<Device>, uint64_t) { return FindGpu(); }
absl::StatusOr<MappedParts> MappedParts::Map(std::shared_ptr<Device>,
                                             absl::Span<const PartHandle>) {
  return FindGpu();
}

absl::StatusOr<std::vector<SurveyedGpu>> SurveyGpus() { return FindGpu(); }
InboundWrites InboundWritesOf(int) { return InboundWrites::kReadBack; }
std::string UuidOfGpu(int) { return ""; }
std::string NameOfGpu(int ordinal) { return "GPU " + std::to_string(ordinal); }

// There is no object to call these on.
UsingContext::UsingContext(CUctx_st*) { std::abort(); }
UsingContext::~UsingContext() = default;
PartHandle::~PartHandle() = default;
MappedParts::~MappedParts() = default;
Device::~Device() { std::abort(); }
std::string Device::PciAddress() const { std::abort(); }
absl::StatusOr<void*> Device::Allocate(size_t) { std::abort(); }
void Device::Free(void*) { std::abort(); }
ExportedMemory Device::Export(const MemorySpan&) { std::abort(); }
absl::StatusOr<std::pair<IpcHandle, uint64_t>> Device::HandleOf(const MemorySpan&) { std::abort(); }
absl::StatusOr<absl::Span<std::byte>> Device::OpenHandle(const IpcHandle&) { std::abort(); }
void Device::CloseHandle(void*) { std::abort(); }
absl::StatusOr<uint64_t> Device::PagesOf(const MemorySpan&) const { std::abort(); }
absl::Status Device::FlushInboundWrites() { std::abort(); }
absl::Status Device::Pin(void*, size_t) { std::abort(); }
void Device::Unpin(void*) { std::abort(); }
absl::StatusOr<Stream> Device::MakeStream() { std::abort(); }
void Device::DestroyStream(Stream) { std::abort(); }
absl::Status Device::Copy(void*, const void*, size_t, Stream) { std::abort(); }
absl::Status Device::Clear(void*, size_t, Stream) { std::abort(); }
absl::Status Device::Finish(Stream) { std::abort(); }
absl::Status Device::After(Event, std::function<void(absl::Status)>) { std::abort(); }

}  // namespace waybill
