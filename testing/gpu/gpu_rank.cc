// A rank with weights on the first GPU, or the rates that bound what ranks can do there. For
// report.py.
//
// usage: gpu_rank trainer|worker CONTROLLER FABRIC MEGABYTES
//        gpu_rank copies MEGABYTES
//
// A trainer publishes a version for each number that it reads. `copies` prints the name of the
// GPU, and the rates in GB/s of a copy within it, from it to pinned host memory, and back.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/control/trainer.h"
#include "core/control/worker.h"
#include "core/device/device.h"
#include "core/fabric/choice/make_fabric.h"

namespace waybill {
namespace {

constexpr int64_t kColumns = 4096;

int64_t MonotonicNanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// Memory of the first GPU, until the end of the program.
struct GpuMemory {
  std::shared_ptr<Device> device;
  Stream stream = nullptr;
  MemorySpan span;

  static absl::StatusOr<GpuMemory> Allocate(uint64_t size_bytes) {
    GpuMemory memory;
    WAYBILL_ASSIGN_OR_RETURN(memory.device, Device::Open(0));
    WAYBILL_ASSIGN_OR_RETURN(memory.stream, memory.device->MakeStream());
    WAYBILL_ASSIGN_OR_RETURN(void* data, memory.device->Allocate(size_bytes));
    memory.span = {MemoryKind::kDevice, static_cast<std::byte*>(data), size_bytes};
    WAYBILL_RETURN_IF_ERROR(memory.device->Clear(data, size_bytes, memory.stream));
    WAYBILL_RETURN_IF_ERROR(memory.device->Finish(memory.stream));
    return memory;
  }
};

// Tensors of up to 256 MB in one region.
Manifest MakeManifest(int64_t rows) {
  constexpr int64_t kMostRows = (256 << 20) / (2 * kColumns);
  Manifest manifest;
  manifest.AddRegion("weights", static_cast<uint64_t>(rows * kColumns * 2));
  uint32_t number = 0;
  for (int64_t row = 0; row < rows; row += kMostRows, ++number) {
    const int64_t count = std::min(rows - row, kMostRows);
    manifest.AddTensor("layer." + std::to_string(number), {count, kColumns}, Dtype::kBf16);
    manifest.AddShard(number, Format{Dtype::kBf16}, Box({0, 0}, {count, kColumns}),
                      {0, static_cast<uint64_t>(row * kColumns * 2), {kColumns, 1}});
  }
  return manifest;
}

absl::Status Train(const RankIdentity& identity, const Manifest& manifest, const MemorySpan& memory,
                   std::unique_ptr<Fabric> fabric) {
  WAYBILL_ASSIGN_OR_RETURN(
      const auto trainer,
      Trainer::Join({.identity = identity, .engine = {}}, manifest, {memory}, std::move(fabric)));
  std::cout << "joined" << std::endl;
  for (uint64_t version = 0; std::cin >> version;) {
    const int64_t begin = MonotonicNanoseconds();
    WAYBILL_RETURN_IF_ERROR(trainer->Publish(version, {.timeout = absl::Seconds(120)}));
    WAYBILL_ASSIGN_OR_RETURN(const auto outcomes, trainer->AwaitOutcome(absl::Seconds(120)));
    for (const GroupOutcome& outcome : outcomes) WAYBILL_RETURN_IF_ERROR(outcome.status);
    std::cout << "published " << begin << std::endl;
  }
  return absl::OkStatus();
}

absl::Status Serve(const RankIdentity& identity, const Manifest& manifest, Mode mode,
                   const MemorySpan& memory, std::unique_ptr<Fabric> fabric) {
  const WorkerOptions options{
      .identity = identity,
      .engine = {.mode = mode},
      .handler = [](const Notice& notice, const WorkerOptions::Answer& answer) {
        if (notice.kind == Notice::Kind::kCommit) {
          std::cout << "shown " << MonotonicNanoseconds() << std::endl;
        }
        answer(absl::OkStatus());
      }};
  WAYBILL_ASSIGN_OR_RETURN(const auto worker,
                           Worker::Join(options, manifest, {memory}, std::move(fabric)));
  std::cout << "joined" << std::endl;
  for (const LaneReport& lane : worker->report().lanes) std::cerr << lane.path << "\n";
  for (std::string line; std::getline(std::cin, line);) {
  }
  return absl::OkStatus();
}

absl::Status Rank(char** words) {
  RankIdentity identity;
  identity.controller = words[2];
  const std::string role = words[1], fabric_name = words[3];
  const int64_t rows =
      std::max<int64_t>(1, std::strtoll(words[4], nullptr, 10) * 1'000'000 / (2 * kColumns));
  const Manifest manifest = MakeManifest(rows);
  WAYBILL_ASSIGN_OR_RETURN(const GpuMemory memory, GpuMemory::Allocate(manifest.region_bytes(0)));
  FabricOptions options;
  WAYBILL_ASSIGN_OR_RETURN(options.forced, ParseFabricKind(fabric_name));
  WAYBILL_ASSIGN_OR_RETURN(auto fabric, MakeFabric(options));
  if (role == "trainer") return Train(identity, manifest, memory.span, std::move(fabric));
  // What no network reaches directly arrives in pinned host memory.
  const Mode mode = fabric_name == "tcp" ? Mode::kShadowCopy : Mode::kInPlace;
  return Serve(identity, manifest, mode, memory.span, std::move(fabric));
}

absl::Status Copies(const char* megabytes) {
  const uint64_t size_bytes = std::strtoull(megabytes, nullptr, 10) * 1'000'000;
  WAYBILL_ASSIGN_OR_RETURN(const GpuMemory from, GpuMemory::Allocate(size_bytes));
  WAYBILL_ASSIGN_OR_RETURN(const GpuMemory to, GpuMemory::Allocate(size_bytes));
  std::cout << "gpu " << from.device->name() << std::endl;
  std::vector<std::byte> host(size_bytes);
  WAYBILL_RETURN_IF_ERROR(from.device->Pin(host.data(), size_bytes));
  const auto measure = [&](const char* name, void* target, const void* source) -> absl::Status {
    for (int i = 0; i < 11; ++i) {
      const int64_t begin = MonotonicNanoseconds();
      WAYBILL_RETURN_IF_ERROR(from.device->Copy(target, source, size_bytes, from.stream));
      WAYBILL_RETURN_IF_ERROR(from.device->Finish(from.stream));
      const auto nanoseconds = static_cast<double>(MonotonicNanoseconds() - begin);
      std::cout << name << " " << static_cast<double>(size_bytes) / nanoseconds << std::endl;
    }
    return absl::OkStatus();
  };
  absl::Status status = measure("within", to.span.data, from.span.data);
  if (status.ok()) status = measure("to-host", host.data(), from.span.data);
  if (status.ok()) status = measure("from-host", to.span.data, host.data());
  from.device->Unpin(host.data());
  return status;
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  const bool is_rank = (role == "trainer" || role == "worker") && argc == 5;
  if (!is_rank && !(role == "copies" && argc == 3)) {
    std::cerr << "usage: gpu_rank trainer|worker CONTROLLER FABRIC MEGABYTES\n"
                 "       gpu_rank copies MEGABYTES\n";
    return 2;
  }
  const absl::Status status = is_rank ? waybill::Rank(argv) : waybill::Copies(argv[2]);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
