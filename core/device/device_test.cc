// SPDX-License-Identifier: Apache-2.0

// The driver is a fake one; its memory ends who touches it from the host.

#include "core/device/device.h"

#include <cuda.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "core/device/created_memory.h"
#include "core/device/gpu_survey.h"
#include "core/device/shared_memory.h"
#include "kernels/cuda/leaf_sum.h"
#include "kernels/cuda/rows.h"
#include "testing/fake_cuda/created_memory.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/fake_cuda/held_stream.h"

namespace waybill {
namespace {

using kernels::cuda::CopyRows;
using kernels::cuda::LeafSum;

class DeviceTest : public testing::Test {
 protected:
  DeviceTest() {
    device_ = *Device::Open(0);
    stream_ = *device_->MakeStream();
  }
  ~DeviceTest() override {
    for (void* memory : memory_) device_->Free(memory);
    device_->DestroyStream(stream_);
    EXPECT_EQ(FakeCudaNow().allocations, 0u);
    EXPECT_EQ(FakeCudaNow().streams, 0u);
  }

  uint8_t* Allocate(size_t size_bytes) {
    memory_.push_back(*device_->Allocate(size_bytes));
    return static_cast<uint8_t*>(memory_.back());
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
  EXPECT_EQ(*FindDevice(memory + 1, 9'999), 0);
  const std::shared_ptr<Device> other = *Device::Open(1);
  void* const its = *other->Allocate(4);
  EXPECT_EQ(*FindDevice(its, 4), 1);
  other->Free(its);
}

TEST_F(DeviceTest, MemoryThatIsNoDevicesIsSaidToBeWhatItIs) {
  std::vector<uint8_t> host(4096);
  EXPECT_EQ(FindDevice(host.data(), 1).status(),
            absl::InvalidArgumentError("no memory of a GPU: the driver does not know it; give it "
                                       "as host memory, or allocate it with cudaMalloc()"));
  ASSERT_TRUE(device_->Pin(host.data(), host.size()).ok());
  EXPECT_EQ(FindDevice(host.data(), 1).status(),
            absl::InvalidArgumentError(
                "no memory of a GPU: it is host memory, pinned for GPU 0 "
                "(GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00); give it as host memory"));
  device_->Unpin(host.data());
  EXPECT_FALSE(FindDevice(Allocate(16), 1 << 20).ok());
  uint8_t* const managed = Allocate(16);
  FakeCudaMakeManaged(managed);
  EXPECT_EQ(FindDevice(managed, 16).status(),
            absl::InvalidArgumentError(
                "no memory of a GPU: it is managed memory of GPU 0 "
                "(GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00), whose pages move between the host and "
                "GPUs; allocate it with cudaMalloc()"));
  CreatedMemory of_two(2);
  EXPECT_EQ(*FindDevice(of_two.data(), of_two.size_bytes()), 0);
  of_two.MapLastOn(1);
  EXPECT_EQ(
      FindDevice(of_two.data(), of_two.size_bytes()).status(),
      absl::InvalidArgumentError("no memory of a GPU: it begins on GPU 0 "
                                 "(GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00), and ends on GPU 1 "
                                 "(GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae01)"));
}

TEST_F(DeviceTest, ARanksRegionsAreOnOneDevice) {
  const std::shared_ptr<Device> other = *Device::Open(1);
  void* const its = *other->Allocate(4);
  const auto span = [](void* memory, MemoryKind kind) {
    return MemorySpan{.kind = kind, .data = static_cast<std::byte*>(memory), .size_bytes = 4};
  };
  std::vector<uint8_t> host(4);
  const MemorySpan on_host = span(host.data(), MemoryKind::kHost);
  const MemorySpan on_other = span(its, MemoryKind::kDevice);
  EXPECT_EQ(*OpenDeviceOf({on_host}), nullptr);
  EXPECT_EQ((*OpenDeviceOf({on_host, on_other}))->ordinal(), 1);
  const auto name_of = [](size_t i) { return std::string(1, static_cast<char>('a' + i)); };
  EXPECT_EQ(
      OpenDeviceOf({on_host, span(Allocate(4), MemoryKind::kDevice), on_other}, name_of)
          .status()
          .message(),
      "\"b\" is memory of GPU 0 (GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00), and \"c\" of GPU 1 "
      "(GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae01): a rank's regions are on one; join with a "
      "rank for each");
  EXPECT_TRUE(absl::StartsWith(
      OpenDeviceOf({on_host, span(host.data(), MemoryKind::kDevice)}, name_of).status().message(),
      "\"b\": no memory of a GPU: "));
  EXPECT_TRUE(
      absl::StartsWith(OpenDeviceOf({span(host.data(), MemoryKind::kDevice)}).status().message(),
                       "region 0: no memory of a GPU: "));
  other->Free(its);
}

MemorySpan Span(uint8_t* memory, size_t size_bytes) {
  return {MemoryKind::kDevice, reinterpret_cast<std::byte*>(memory), size_bytes};
}

// What a NIC sees at the beginning of memory that was exported.
uint8_t FirstByteOf(const ExportedMemory& exported) {
  uint8_t byte = 0;
  const off_t at = lseek(exported.dmabuf.get(), 0, SEEK_CUR) +
                   static_cast<off_t>(exported.span.dmabuf_offset_bytes);
  EXPECT_EQ(pread(exported.dmabuf.get(), &byte, 1, at), 1);
  return byte;
}

class ExportTest : public DeviceTest {
 protected:
  ExportTest() { FakeCudaSayOfNics(0, kFakeCudaReadBack); }
  ~ExportTest() override { FakeCudaSayOfNics(0, kFakeCudaReadBack, /*exports_dmabuf=*/false); }
};

TEST_F(ExportTest, AnyPartOfAnAllocationIsExportedByWholePages) {
  FakeCudaSayOfNics(0, kFakeCudaOrders);
  uint8_t* const memory = Allocate(20'000);
  std::vector<uint8_t> bytes(20'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i / 3);
  ASSERT_TRUE(device_->Copy(memory, bytes.data(), bytes.size(), stream_).ok());
  ASSERT_TRUE(device_->Finish(stream_).ok());
  for (const size_t begin : {0u, 1u, 4096u, 10'001u}) {
    const ExportedMemory exported = device_->Export(Span(memory + begin, 20'000 - begin));
    ASSERT_TRUE(exported.why_none.ok()) << exported.why_none;
    EXPECT_EQ(exported.span.dmabuf_fd, exported.dmabuf.get());
    EXPECT_EQ(exported.span.dmabuf_offset_bytes, begin % 4096);
    EXPECT_EQ(FirstByteOf(exported), bytes[begin]);
  }
}

TEST_F(ExportTest, AllocationsSideBySideAreExportedAsOneUnlessThereIsAHole) {
  CreatedMemory memory(2);
  auto* const begin = reinterpret_cast<uint8_t*>(memory.data());
  const absl::Status whole = device_->Export(Span(begin + 5, memory.size_bytes() - 5)).why_none;
  EXPECT_TRUE(whole.ok()) << whole;
  memory.UnmapFirst();
  EXPECT_FALSE(device_->Export(Span(begin + 5, memory.size_bytes() - 5)).why_none.ok());
}

TEST_F(ExportTest, WhereThereIsNoDmabufItIsSaidWhy) {
  std::vector<uint8_t> host(16);
  EXPECT_EQ(device_->Export(Span(host.data(), 16)).why_none.code(), absl::StatusCode::kInternal);
  FakeCudaSayOfNics(0, kFakeCudaReadBack, /*exports_dmabuf=*/false);
  const ExportedMemory none = device_->Export(Span(Allocate(16), 16));
  EXPECT_EQ(none.why_none.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(none.span.dmabuf_fd, -1);
}

struct WritesCase {
  FakeCudaWrites device;
  InboundWrites on_cuda;
  InboundWrites on_hip;
};

class InboundWritesTest : public ExportTest, public testing::WithParamInterface<WritesCase> {};

// With HIP a GPU never orders them, and none is coherent.
INSTANTIATE_TEST_SUITE_P(
    All, InboundWritesTest,
    testing::Values(
        WritesCase{kFakeCudaReadBack, InboundWrites::kReadBack, InboundWrites::kReadBack},
        WritesCase{kFakeCudaFlushes, InboundWrites::kFlushed, InboundWrites::kFlushed},
        WritesCase{kFakeCudaOrders, InboundWrites::kOrdered, InboundWrites::kFlushed},
        WritesCase{kFakeCudaOrdersForOwner, InboundWrites::kFlushed, InboundWrites::kFlushed},
        WritesCase{kFakeCudaCoherent, InboundWrites::kReadBack, InboundWrites::kFlushed}));

TEST_P(InboundWritesTest, AreSeenOnceWhatTheDeviceNeedsWasDone) {
  FakeCudaSayOfNics(0, GetParam().device);
  const std::shared_ptr<Device> device = *Device::Open(0);
  const InboundWrites writes = device->inbound_writes();
  ASSERT_EQ(writes, FakeCudaIsHip() ? GetParam().on_hip : GetParam().on_cuda);
  uint8_t* const memory = Allocate(16);
  const ExportedMemory exported = device->Export(Span(memory, 16));
  const auto seen = [&] {
    uint8_t byte = 0;
    EXPECT_TRUE(device_->Copy(&byte, memory, 1, stream_).ok());
    EXPECT_TRUE(device_->Finish(stream_).ok());
    return byte;
  };
  const uint8_t written = 7;
  ASSERT_EQ(pwrite(exported.dmabuf.get(), &written, 1, 0), 1);
  const bool at_once =
      GetParam().device == kFakeCudaOrders || GetParam().device == kFakeCudaOrdersForOwner;
  EXPECT_EQ(seen(), at_once ? 7 : 0);
  const absl::Status flushed = device->FlushInboundWrites();
  if (writes == InboundWrites::kReadBack) {
    EXPECT_EQ(seen(), 0);
    FakeCudaNicHasRead();
  } else if (writes == InboundWrites::kFlushed) {
    EXPECT_EQ(flushed.message(), "");
  }
  EXPECT_EQ(seen(), 7);
}

TEST_F(DeviceTest, OtherPagesUnderTheSameAddressesAreNoticed) {
  uint8_t* const memory = Allocate(10'000);
  const uint64_t before = *device_->PagesOf(Span(memory, 10'000));
  EXPECT_EQ(*device_->PagesOf(Span(memory, 10'000)), before);
  EXPECT_NE(*device_->PagesOf(Span(Allocate(10'000), 10'000)), before);
  FakeCudaRemap(memory);
  EXPECT_NE(*device_->PagesOf(Span(memory, 10'000)), before);
  EXPECT_EQ(device_->PagesOf(Span(memory, 1 << 20)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// Runs a test of this program in a process of its own, with one more variable in its environment.
// Returns its exit status.
int RunWith(const std::string& variable, const std::string& test) {
  const std::string filter = "--gtest_filter=" + test;
  std::vector<char*> arguments = {const_cast<char*>("device_test"),
                                  const_cast<char*>("--gtest_also_run_disabled_tests"),
                                  const_cast<char*>(filter.c_str()), nullptr};
  std::vector<char*> environment = {const_cast<char*>(variable.c_str())};
  for (char** old = environ; *old != nullptr; ++old) {
    // It has no part in this test's result.
    if (!absl::StartsWith(*old, "XML_OUTPUT_FILE=") && !absl::StartsWith(*old, "TEST_")) {
      environment.push_back(*old);
    }
  }
  environment.push_back(nullptr);
  pid_t child = 0;
  int status = -1;
  if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(),
                  environment.data()) != 0) {
    return -1;
  }
  waitpid(child, &status, 0);
  return status;
}

// Also tells it a name.
int RunWithName(const std::string& test, const SharedMemoryName& name) {
  const std::string bytes(reinterpret_cast<const char*>(&name), sizeof(name));
  return RunWith("WAYBILL_TEST_NAME=" + absl::BytesToHexString(bytes), test);
}

TEST(Driver, OneThatIsTooOldIsNamedWithTheOldestThatWorks) {
  const char* const old =
      FakeCudaIsHip() ? "FAKE_HIP_VERSION=60443484" : "FAKE_CUDA_DRIVER_VERSION=12080";
  EXPECT_EQ(RunWith(old, "OldDriver.DISABLED_IsRefused"), 0);
}

TEST(OldDriver, DISABLED_IsRefused) {
  const absl::Status gpu = FindGpu();
  const absl::string_view expected =
      FakeCudaIsHip()
          ? "libamdhip64.so.7 is of ROCm 6.4, and the oldest that works is 7.1: install "
            "a newer one"
          : "no GPU: the driver (libcuda.so.1) is for CUDA 12.8, and the oldest that "
            "works is that of CUDA 13.0 (580): install a newer one";
  EXPECT_TRUE(absl::EndsWith(gpu.message(), expected)) << gpu;
  EXPECT_EQ(FindDevice("host memory", 1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Device::Open(0).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(DeviceTest, AnotherProcessReadsAndWritesMemoryThatIsNamedToIt) {
  // The others share the pages of a block, of which the driver names the whole.
  for (const size_t size_bytes : {100'000, 10'000, 10'000}) {
    uint8_t* const memory = Allocate(size_bytes);
    uint8_t* const last = memory + size_bytes - 5000;
    ASSERT_TRUE(device_->Clear(memory, size_bytes, stream_).ok());
    const uint8_t seven = 7;
    ASSERT_TRUE(device_->Copy(last, &seven, 1, stream_).ok());
    ASSERT_TRUE(device_->Finish(stream_).ok());
    const NamedMemory named = *NamedMemory::Create(Span(last, 5000));
    ASSERT_TRUE(named.name().names_something());
    EXPECT_EQ(RunWithName("OtherProcess.DISABLED_FindsSevenAndPutsEightBehindIt", named.name()), 0);
    uint8_t got[2] = {};
    ASSERT_TRUE(device_->Copy(got, last, 2, stream_).ok());
    ASSERT_TRUE(device_->Finish(stream_).ok());
    EXPECT_EQ(got[0], 7);
    EXPECT_EQ(got[1], 8);
  }
}

TEST(OtherProcess, DISABLED_FindsSevenAndPutsEightBehindIt) {
  SharedMemoryName name;
  const std::string bytes = absl::HexStringToBytes(std::getenv("WAYBILL_TEST_NAME"));
  ASSERT_EQ(bytes.size(), sizeof(name));
  std::memcpy(&name, bytes.data(), sizeof(name));
  const std::shared_ptr<Device> device = *Device::Open(1);  // It counts them in another way.
  Stream stream = *device->MakeStream();
  {
    const absl::StatusOr<OpenedMemory> opened = OpenedMemory::Open(device, name, 5000);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const absl::StatusOr<OpenedMemory> again = OpenedMemory::Open(device, name, 5000);
    ASSERT_TRUE(again.ok()) << again.status();
    // An allocation that shares a block may be in the middle of it.
    EXPECT_EQ(OpenedMemory::Open(device, name, 100'000).status().code(),
              absl::StatusCode::kOutOfRange);
    EXPECT_EQ(again->data(), opened->data());
    uint8_t got = 0;
    const uint8_t eight = 8;
    EXPECT_TRUE(device->Copy(&got, opened->data(), 1, stream).ok());
    EXPECT_TRUE(device->Copy(opened->data() + 1, &eight, 1, stream).ok());
    EXPECT_TRUE(device->Finish(stream).ok());
    EXPECT_EQ(got, 7);
    EXPECT_EQ(FakeCudaNow().allocations, 1u);
  }
  EXPECT_EQ(FakeCudaNow().allocations, 0u);
  FakeCudaFail(0);
  EXPECT_EQ(OpenedMemory::Open(device, name, 5000).status().code(), absl::StatusCode::kInternal);
  device->DestroyStream(stream);
}

TEST_F(DeviceTest, ItsOwnMemoryAProcessReadsWhereItIs) {
  uint8_t* const memory = Allocate(100);
  SharedMemoryName name;
  {
    const NamedMemory named = *NamedMemory::Create(Span(memory + 10, 90));
    name = named.name();
    EXPECT_EQ(OpenedMemory::Open(device_, name, 90)->data(),
              reinterpret_cast<std::byte*>(memory + 10));
    EXPECT_EQ(OpenedMemory::Open(device_, name, 91).status().code(), absl::StatusCode::kOutOfRange);
  }
  // It has no name any more, and by its handle a process cannot open what is its own.
  EXPECT_EQ(OpenedMemory::Open(device_, name, 90).status().code(), absl::StatusCode::kInternal);
}

// Memory as torch's expandable segments are.
class CreatedMemoryTest : public DeviceTest {
 protected:
  ~CreatedMemoryTest() override {
    FakeCudaRefuse(kFakeCudaNone);
    EXPECT_EQ(FakeCudaNow().handles, 0u);
    EXPECT_EQ(FakeCudaNow().reserved, 0u);
  }

  // What is in `memory` from 1,000 bytes before the second allocation begins to as many behind the
  // end of it.
  static constexpr size_t kBegin = CreatedMemory::kAllocationBytes - 1000;
  static constexpr size_t kBytes = CreatedMemory::kAllocationBytes + 2000;
  static MemorySpan Middle(const CreatedMemory& memory) {
    return {MemoryKind::kDevice, memory.data() + kBegin, kBytes};
  }
  // Imports each part, as another process does.
  absl::StatusOr<std::vector<PartHandle>> Import(const NamedMemory& named) const {
    std::vector<PartHandle> imported;
    for (size_t i = 0; i < named.parts().size(); ++i) {
      const absl::StatusOr<UniqueFd> file = named.ExportPart(i);
      if (!file.ok()) return file.status();
      absl::StatusOr<PartHandle> one =
          PartHandle::Import(device_, *file, named.parts()[i].size_bytes);
      if (!one.ok()) return one.status();
      imported.push_back(*std::move(one));
    }
    return imported;
  }
};

TEST_F(CreatedMemoryTest, AllAllocationsUnderItAreOpenedSideBySide) {
  CreatedMemory memory(3);
  std::vector<uint8_t> sent(kBytes), got(kBytes);
  for (size_t i = 0; i < kBytes; ++i) sent[i] = static_cast<uint8_t>(i % 251);
  ASSERT_TRUE(device_->Copy(Middle(memory).data, sent.data(), kBytes, stream_).ok());
  const absl::StatusOr<NamedMemory> named = NamedMemory::Create(Middle(memory));
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->name().part_count, 3u);
  EXPECT_EQ(named->name().offset_bytes, kBegin);
  const std::shared_ptr<Device> other = *Device::Open(1);
  Stream stream = *other->MakeStream();
  std::optional<OpenedMemory> opened;
  {
    const absl::StatusOr<std::vector<PartHandle>> parts = Import(*named);
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_EQ(OpenedMemory::Open(other, named->name(), 3 * CreatedMemory::kAllocationBytes, *parts)
                  .status()
                  .code(),
              absl::StatusCode::kOutOfRange);
    absl::StatusOr<OpenedMemory> now = OpenedMemory::Open(other, named->name(), kBytes, *parts);
    ASSERT_TRUE(now.ok()) << now.status();
    opened.emplace(*std::move(now));
  }
  EXPECT_NE(opened->data(), Middle(memory).data);
  ASSERT_TRUE(device_->Finish(stream_).ok());
  // A device for which it was not mapped cannot read it; this one can, and nobody else is needed.
  memory.Unmap();
  ASSERT_TRUE(other->Copy(got.data(), opened->data(), kBytes, stream).ok());
  ASSERT_TRUE(other->Finish(stream).ok());
  EXPECT_EQ(got, sent);
  opened.reset();
  other->DestroyStream(stream);
  EXPECT_EQ(FakeCudaNow().allocations, 0u);
}

TEST_F(CreatedMemoryTest, WhatWasNotCreatedForOtherProcessesHasNoName) {
  const CreatedMemory memory(2, CreatedMemory::Exportable::kNo);
  EXPECT_EQ(
      NamedMemory::Create({MemoryKind::kDevice, memory.data() + 5, 100}).status(),
      absl::UnimplementedError(
          "no other process can open byte 0 of 100: its allocation was not created with "
          "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (its handle types are 0); create it with that "
          "type, or allocate with cudaMalloc()"));
}

TEST_F(CreatedMemoryTest, MemoryThatIsUnmappedHasNoName) {
  CreatedMemory memory(2);
  memory.Unmap();
  EXPECT_FALSE(NamedMemory::Create(Middle(memory)).ok());
  memory.Map();
  // It ends behind what is mapped.
  EXPECT_FALSE(NamedMemory::Create(Middle(memory)).ok());
}

TEST_F(CreatedMemoryTest, ADriverThatRefusesIsQuotedAndNothingIsLeft) {
  const CreatedMemory memory(3);
  for (const FakeCudaStep step : {kFakeCudaRetain, kFakeCudaExport}) {
    FakeCudaRefuse(step);
    const absl::Status status = NamedMemory::Create(Middle(memory)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    // HIP is asked for the handle to learn what memory it is.
    EXPECT_TRUE(absl::StartsWith(
        status.message(), FakeCudaIsHip() && step == kFakeCudaRetain
                              ? "name memory to other processes: "
                              : "export an allocation of 2097152 bytes to other processes: "))
        << status;
  }
  FakeCudaRefuse(kFakeCudaNone);
  const NamedMemory named = *NamedMemory::Create(Middle(memory));
  FakeCudaRefuse(kFakeCudaImport);
  EXPECT_TRUE(absl::StartsWith(Import(named).status().message(),
                               "import an allocation of 2097152 bytes of another process: "));
  FakeCudaRefuse(kFakeCudaNone);
  const std::vector<PartHandle> parts = *Import(named);
  EXPECT_EQ(FakeCudaNow().handles, 3u);
  for (const FakeCudaStep step : {kFakeCudaReserve, kFakeCudaMap, kFakeCudaAllow}) {
    FakeCudaRefuse(step);
    const absl::Status status = OpenedMemory::Open(device_, named.name(), kBytes, parts).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(absl::StartsWith(
        status.message(), "map 3 allocations of cuMemCreate(), 6291456 bytes, for GPU 0 (GPU-a0"))
        << status;
    EXPECT_EQ(FakeCudaNow().reserved, 1u);
    EXPECT_EQ(FakeCudaNow().allocations, 3u);
  }
}

TEST_F(CreatedMemoryTest, MemoryForOtherProcessesIsCreatedWhereTheDeviceHasIt) {
  EXPECT_EQ(CreateForOthers(device_, 5000).status().code(), absl::StatusCode::kUnimplemented);
  FakeCudaSetAttribute(0, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1);
  {
    const absl::StatusOr<MappedParts> created = CreateForOthers(device_, 5000);
    ASSERT_TRUE(created.ok()) << created.status();
    EXPECT_EQ(created->bytes().size(), CreatedMemory::kAllocationBytes);
    const MemorySpan span = {MemoryKind::kDevice, created->bytes().data(), 5000};
    ASSERT_TRUE(device_->Clear(span.data, span.size_bytes, stream_).ok());
    ASSERT_TRUE(device_->Finish(stream_).ok());
    const NamedMemory named = *NamedMemory::Create(span);
    EXPECT_TRUE(OpenedMemory::Open(device_, named.name(), 5000, *Import(named)).ok());
  }
  EXPECT_EQ(FakeCudaNow().allocations, 0u);
  FakeCudaRefuse(kFakeCudaMap);
  EXPECT_EQ(CreateForOthers(device_, 5000).status().code(), absl::StatusCode::kInternal);
  FakeCudaSetAttribute(0, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0);
}

// A peer says how large its allocations are, and need not be right.
TEST_F(CreatedMemoryTest, SizesThatAreNotThoseOfTheAllocationsAreRefused) {
  const CreatedMemory memory(1);
  const auto parts = *FindCreatedParts(*device_, {MemoryKind::kDevice, memory.data(), 1});
  const auto open = [&](uint64_t said_bytes) {
    std::vector<PartHandle> imported;
    imported.push_back(*PartHandle::Import(device_, *ExportPart(*device_, parts[0]), said_bytes));
    return MappedParts::Map(device_, imported).status().code();
  };
  EXPECT_EQ(open(2 * CreatedMemory::kAllocationBytes), absl::StatusCode::kInternal);
  EXPECT_EQ(open(0), absl::StatusCode::kInternal);
  EXPECT_EQ(open(1000), absl::StatusCode::kInternal);
  EXPECT_EQ(open(~uint64_t{0}), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(open(CreatedMemory::kAllocationBytes), absl::StatusCode::kOk);
  // A file that is none of an allocation, and none at all.
  EXPECT_FALSE(PartHandle::Import(device_, UniqueFd(dup(STDIN_FILENO)), 4096).ok());
  EXPECT_EQ(PartHandle::Import(device_, UniqueFd(), 4096).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CreatedMemoryTest, OtherAllocationsUnderTheSameAddressesAreNoticed) {
  CreatedMemory memory(3);
  const uint64_t before = *device_->PagesOf(Middle(memory));
  EXPECT_EQ(*device_->PagesOf(Middle(memory)), before);
  memory.Unmap();
  EXPECT_FALSE(device_->PagesOf(Middle(memory)).ok());
  memory.Map();
  EXPECT_NE(*device_->PagesOf(Middle(memory)), before);
}

TEST_F(DeviceTest, AnEventIsToldOfWhenWhatIsBeforeItIsDone) {
  HeldStream busy;
  std::promise<void> passed;
  std::future<void> is_passed = passed.get_future();
  ASSERT_TRUE(
      device_->After(busy.RecordedEvent(), [&](const absl::Status&) { passed.set_value(); }).ok());
  // Another stream's work goes on, and ends, while that one waits.
  uint8_t* const memory = Allocate(4);
  ASSERT_TRUE(device_->Clear(memory, 4, stream_).ok());
  ASSERT_TRUE(device_->Finish(stream_).ok());
  EXPECT_EQ(is_passed.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  busy.Release();
  is_passed.wait();
}

// An error on a GPU lasts: nothing of it is reached any more.
TEST_F(DeviceTest, WhoWaitsForAnEventIsToldWhenTheDeviceFails) {
  HeldStream busy;
  std::promise<absl::Status> reached;
  ASSERT_TRUE(device_
                  ->After(busy.RecordedEvent(),
                          [&](absl::Status status) { reached.set_value(std::move(status)); })
                  .ok());
  FakeCudaFail(0);
  busy.Release();
  EXPECT_EQ(reached.get_future().get(),
            absl::InternalError("wait for an event on GPU 0 "
                                "(GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00): error 719 of its "
                                "driver; what ran there has failed, and the process has to be "
                                "started again"));
  FakeCudaFail(-1);
}

TEST_F(DeviceTest, AnEventOfAStreamThatIsCapturedIsRefused) {
  HeldStream busy;
  FakeCudaCapture(busy.stream(), true);
  const absl::Status status =
      device_->After(busy.RecordAnotherEvent(), [](const absl::Status&) { FAIL(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StartsWith(status.message(),
                               "wait for an event on GPU 0 "
                               "(GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00): it was recorded in a "
                               "stream that is being captured into a CUDA graph"))
      << status;
  // The capture is not disturbed by an event of another stream.
  HeldStream other;
  std::promise<void> passed;
  ASSERT_TRUE(
      device_->After(other.RecordedEvent(), [&](const absl::Status&) { passed.set_value(); }).ok());
  other.Release();
  passed.get_future().wait();
  FakeCudaCapture(busy.stream(), false);
}

// torch destroys an event with its last reference.
TEST_F(DeviceTest, AnEventThatIsDestroyedIsRefused) {
  if (FakeCudaIsHip()) GTEST_SKIP() << "the events below are made by CUDA's driver";
  CUevent event = nullptr;
  {
    const UsingContext current(device_->context());
    ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
  }
  EXPECT_FALSE(device_->After(event, [](const absl::Status&) { FAIL(); }).ok());
}

// torch captures in the mode "global": most calls of any thread would end the capture, and fail.
TEST_F(DeviceTest, NoCallEndsTheCaptureOfAGraphOnAnotherThread) {
  FakeCudaSayOfNics(0, kFakeCudaFlushes);
  FakeCudaSayOfFiles(0, true);
  std::vector<uint8_t> host(4096);
  CreatedMemory created(1);
  HeldStream captured;
  captured.Release();  // Some of the calls wait for the GPU.
  FakeCudaCapture(captured.stream(), true);
  {
    uint8_t* const memory = Allocate(100);
    EXPECT_TRUE(Device::Open(0).ok());
    EXPECT_TRUE(device_->PagesOf(Span(memory, 100)).ok());
    EXPECT_TRUE(device_->Export(Span(memory, 100)).why_none.ok());
    EXPECT_TRUE(device_->FlushInboundWrites().ok());
    EXPECT_TRUE(device_->Pin(host.data(), host.size()).ok());
    device_->Unpin(host.data());
    EXPECT_TRUE(NamedMemory::Create(Span(memory, 100)).ok());
    const Stream stream = *device_->MakeStream();
    EXPECT_TRUE(device_->Clear(memory, 100, stream).ok());
    EXPECT_TRUE(device_->Copy(host.data(), memory, 100, stream).ok());
    EXPECT_TRUE(device_->Finish(stream).ok());
    device_->DestroyStream(stream);
    EXPECT_TRUE(CreateForOthers(device_, 5000).ok());
    const NamedMemory named = *NamedMemory::Create({MemoryKind::kDevice, created.data(), 100});
    const PartHandle part =
        *PartHandle::Import(device_, *named.ExportPart(0), created.size_bytes());
    EXPECT_TRUE(OpenedMemory::Open(device_, named.name(), 100, {&part, 1}).ok());
  }
  FakeCudaCapture(captured.stream(), false);
  FakeCudaSayOfFiles(0, false);
  FakeCudaSayOfNics(0, kFakeCudaReadBack, /*exports_dmabuf=*/false);
  EXPECT_EQ(FakeCudaNow().handles, 0u);
}

// Whatever is loaded later may wait for a whole GPU.
TEST_F(DeviceTest, OpeningADeviceLoadsEveryKernel) {
  uint8_t* const memory = Allocate(64);
  const uint64_t waits = FakeCudaNow().device_waits;
  const UsingContext current(device_->context());
  EXPECT_TRUE(CopyRows(memory, 16, memory + 32, 16, 1, 16, LeafSum(), stream_).ok());
  EXPECT_TRUE(CopyRows(memory, 3, memory + 33, 3, 1, 3, LeafSum(), stream_).ok());
  EXPECT_TRUE(device_->Finish(stream_).ok());
  EXPECT_EQ(FakeCudaNow().device_waits, waits);
}

// A thread's current context is the caller's.
TEST_F(DeviceTest, NoCallChangesTheCurrentContext) {
  CUcontext before = nullptr, of_other = nullptr, after = nullptr;
  uint8_t* const memory = Allocate(100);  // With HIP a thread then has a device.
  ASSERT_EQ(cuCtxGetCurrent(&before), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&of_other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPushCurrent(of_other), CUDA_SUCCESS);
  EXPECT_NE(Allocate(100), nullptr);
  EXPECT_TRUE(device_->Clear(memory, 100, stream_).ok());
  {
    const UsingContext current(device_->context());
    EXPECT_TRUE(CopyRows(memory, 16, memory + 32, 16, 1, 16, LeafSum(), stream_).ok());
  }
  EXPECT_TRUE(device_->Finish(stream_).ok());
  EXPECT_TRUE(NamedMemory::Create(Span(memory, 100)).ok());
  EXPECT_FALSE(device_->Allocate(0).ok());
  EXPECT_TRUE(Device::Open(0).ok());
  ASSERT_EQ(cuCtxPopCurrent(&after), CUDA_SUCCESS);
  EXPECT_EQ(after, of_other);
  // And this was the only one.
  ASSERT_EQ(cuCtxGetCurrent(&after), CUDA_SUCCESS);
  EXPECT_EQ(after, before);
}

TEST_F(DeviceTest, ALaunchThatFailsNamesTheKernel) {
  uint8_t* const memory = Allocate(64);
  FakeCudaFail(0);
  const absl::Status status =
      ToStatus(CopyRows(memory, 16, memory + 32, 16, 1, 16, LeafSum(), stream_));
  FakeCudaFail(-1);
  EXPECT_NE(status.message().find("launch WaybillRows16: cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED"),
            std::string::npos)
      << status.message();
}

TEST(SurveyGpus, SaysOfEachWhatItIsAndWhatReachesItsMemory) {
  FakeCudaSetAttribute(1, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1);
  FakeCudaSetAttribute(0, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1);
  const auto gpus = SurveyGpus();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_EQ(gpus->size(), 2u);
  const SurveyedGpu& first = gpus->front();
  EXPECT_EQ(first.name, "Fake GPU");
  EXPECT_EQ(first.uuid, "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00");
  EXPECT_EQ(first.pci_address, "0000:3b:00.0");
  EXPECT_EQ(first.memory_bytes, uint64_t{16} << 30);
  EXPECT_TRUE(first.has_peer_memory);
  EXPECT_FALSE(first.exports_dmabuf);
  EXPECT_FALSE(first.is_mig);
  EXPECT_EQ(first.inbound_writes, InboundWrites::kReadBack);
  EXPECT_EQ(gpus->back().ordinal, 1);
  EXPECT_EQ(gpus->back().pci_address, "0000:3c:00.0");
  EXPECT_TRUE(gpus->back().exports_dmabuf);
  EXPECT_EQ(gpus->back().has_peer_memory, FakeCudaIsHip());  // Which does not say.
}

// AMD's have digits for a UUID.
TEST(SurveyGpus, AUuidOfDigitsIsSaidAsItIs) {
  EXPECT_EQ(RunWith("FAKE_CUDA_UUID=d1f5c0aa0b14e7e0", "Uuid.DISABLED_OfDigits"), 0);
}

TEST(Uuid, DISABLED_OfDigits) { EXPECT_EQ(UuidOfGpu(0), "GPU-d1f5c0aa0b14e7e0"); }

// An instance of a GPU that is divided is the only GPU that a process sees.
TEST(Mig, AnInstanceIsNamedByItsOwnUuid) {
  if (FakeCudaIsHip()) GTEST_SKIP() << "AMD's GPUs have none";
  EXPECT_EQ(RunWith("FAKE_CUDA_MIG=3", "MigInstance.DISABLED_IsNamedByItsOwnUuid"), 0);
}

TEST(MigInstance, DISABLED_IsNamedByItsOwnUuid) {
  EXPECT_EQ(NameOfGpu(0), "GPU 0 (MIG-a0a1a2a3-a4a5-a6a7-a8a9-aaabacad0300)");
  FakeCudaSetAttribute(0, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1);
  FakeCudaSetAttribute(0, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1);
  const auto gpus = SurveyGpus();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_EQ(gpus->size(), 1u);
  EXPECT_TRUE(gpus->front().is_mig);
  EXPECT_TRUE(gpus->front().exports_dmabuf);
  EXPECT_FALSE(gpus->front().has_peer_memory);
  EXPECT_EQ(Device::Open(1).status(),
            absl::InvalidArgumentError("open GPU 1: this process sees 1 GPUs, from 0 on; "
                                       "CUDA_VISIBLE_DEVICES says which"));
}

TEST_F(DeviceTest, AMigInstanceOpensNoMemoryOfAnother) {
  const NamedMemory named = *NamedMemory::Create(Span(Allocate(100), 100));
  const std::string bytes(reinterpret_cast<const char*>(&named.name()), sizeof(named.name()));
  ASSERT_EQ(setenv("WAYBILL_TEST_NAME", absl::BytesToHexString(bytes).c_str(), 1), 0);
  EXPECT_EQ(RunWith("FAKE_CUDA_MIG=3", "MigInstance.DISABLED_OpensNoMemoryOfAnother"), 0);
  ASSERT_EQ(unsetenv("WAYBILL_TEST_NAME"), 0);
}

TEST(MigInstance, DISABLED_OpensNoMemoryOfAnother) {
  SharedMemoryName name;
  const std::string bytes = absl::HexStringToBytes(std::getenv("WAYBILL_TEST_NAME"));
  ASSERT_EQ(bytes.size(), sizeof(name));
  std::memcpy(&name, bytes.data(), sizeof(name));
  EXPECT_EQ(OpenedMemory::Open(*Device::Open(0), name, 100).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(FakeCudaNow().allocations, 0u);
}

TEST(Device, OneThatAnotherProcessHasForItselfIsUnavailableWithTheRemedy) {
  if (FakeCudaIsHip()) GTEST_SKIP() << "AMD's GPUs have no such mode";
  FakeCudaRefuse(kFakeCudaContext);
  const absl::Status status = Device::Open(0).status();
  FakeCudaRefuse(kFakeCudaNone);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::EndsWith(status.message(),
                             "another process has it in exclusive mode; end that process, or run "
                             "\"nvidia-smi -c DEFAULT\""))
      << status;
}

TEST(Device, OneThatIsNotThereIsNamed) {
  EXPECT_TRUE(absl::StartsWith(Device::Open(7).status().message(), "open GPU 7: "));
}

}  // namespace
}  // namespace waybill
