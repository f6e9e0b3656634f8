// SPDX-License-Identifier: Apache-2.0

// A rank with weights on the first GPU, or the rates that bound what ranks can do there. The steps
// "processes" and "faults" of the bundle run it.
//
// usage: gpu_rank trainer|worker CONTROLLER FABRIC MEGABYTES [KIND [MEMORY [SPARE]]]
//        gpu_rank copies MEGABYTES
//
// MEGABYTES of elements that the trainer holds: BF16, or F32 for the kind "cast".
// KIND       What the worker wants: "plain" (the default), "undigested", "cast" to BF16,
//            "transposed", or "fp8" by blocks.
// MEMORY     What allocates the weights: cuMemAlloc ("allocated", the default), or cuMemCreate
//            ("created"), as for torch's expandable segments.
// SPARE      The rank joins with so many MiB of free memory on the GPU, and takes the rest.
//
// A trainer publishes a version for each number that it reads. It says "begins", how its lanes go,
// and "published BEGIN WAITS" or "failed ...". A worker waits for the version and says "shown END
// WAITS", then "right" or "wrong ...". BEGIN and END are nanoseconds of the machine's clock; WAITS
// counts the calls for which the process waited for the GPU meanwhile. `copies` prints the name of
// the GPU, and the rates in GB/s of a copy within it, from it to pinned host memory, and back.
#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/control/trainer.h"
#include "core/control/worker.h"
#include "core/device/device.h"
#include "core/fabric/choice/make_fabric.h"
#include "core/tensor/quantisation.h"
#include "kernels/cuda/driver_functions.h"
#include "kernels/quantise.h"
#include "testing/gpu/segment.h"

namespace waybill {
namespace {

using kernels::cuda::Driver;

constexpr int64_t kColumns = 4096;
constexpr int64_t kPeriod = 128;  // Rows after which the elements repeat themselves; a block's.
constexpr absl::Duration kPatience = absl::Seconds(25);

int64_t MonotonicNanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// Counts the calls for which the process waits for the GPU.
std::atomic<uint64_t> waits = 0;
decltype(&cuStreamSynchronize) synchronize_stream = nullptr;
decltype(&cuEventSynchronize) synchronize_event = nullptr;

void CountWaits() {
  // The library has one table of the driver's functions, on the heap.
  auto* const functions = const_cast<kernels::cuda::DriverFunctions*>(Driver());
  synchronize_stream = functions->cuStreamSynchronize_fn;
  synchronize_event = functions->cuEventSynchronize_fn;
  functions->cuStreamSynchronize_fn = [](CUstream stream) {
    ++waits;
    return synchronize_stream(stream);
  };
  functions->cuEventSynchronize_fn = [](CUevent event) {
    ++waits;
    return synchronize_event(event);
  };
}

// Memory of the first GPU, until the end of the program.
struct GpuMemory {
  std::shared_ptr<Device> device;
  Stream stream = nullptr;
  MemorySpan span;

  static absl::StatusOr<GpuMemory> Allocate(uint64_t size_bytes, bool created = false) {
    GpuMemory memory;
    WAYBILL_ASSIGN_OR_RETURN(memory.device, Device::Open(0));
    WAYBILL_ASSIGN_OR_RETURN(memory.stream, memory.device->MakeStream());
    void* data = nullptr;
    if (created) {
      constexpr uint64_t kPartBytes = 20 << 20;  // As torch has it.
      WAYBILL_ASSIGN_OR_RETURN(auto segment, Segment::Create(size_bytes, kPartBytes));
      data = segment.release()->data();
    } else {
      WAYBILL_ASSIGN_OR_RETURN(data, memory.device->Allocate(size_bytes));
    }
    memory.span = {MemoryKind::kDevice, static_cast<std::byte*>(data), size_bytes};
    WAYBILL_RETURN_IF_ERROR(memory.device->Clear(data, size_bytes, memory.stream));
    WAYBILL_RETURN_IF_ERROR(memory.device->Finish(memory.stream));
    return memory;
  }

  absl::Status Copy(void* to, const void* from, size_t bytes) const {
    WAYBILL_RETURN_IF_ERROR(device->Copy(to, from, bytes, stream));
    return device->Finish(stream);
  }
};

// Takes the GPU's memory, until the end of the program, but for so many MiB.
absl::Status TakeAllBut(uint64_t mebibytes, const GpuMemory& memory) {
  WAYBILL_ASSIGN_OR_RETURN(void* const spare, memory.device->Allocate(mebibytes << 20));
  for (uint64_t size = uint64_t{1} << 30; size >= 2 << 20; size /= 2) {
    while (memory.device->Allocate(size).ok()) {
    }
  }
  memory.device->Free(spare);
  return absl::OkStatus();
}

enum class Kind { kPlain, kUndigested, kCast, kTransposed, kFp8 };

absl::StatusOr<Kind> ParseKind(const std::string& name) {
  if (name == "plain") return Kind::kPlain;
  if (name == "undigested") return Kind::kUndigested;
  if (name == "cast") return Kind::kCast;
  if (name == "transposed") return Kind::kTransposed;
  if (name == "fp8") return Kind::kFp8;
  return absl::InvalidArgumentError(absl::StrCat("no kind \"", name, "\""));
}

// What both ranks hold: matrices of kColumns columns, two or three of them at least.
struct Weights {
  int64_t rows = 0;  // Of all together; a multiple of kPeriod.
  Kind kind = Kind::kPlain;

  int64_t rows_of_tensor() const {
    constexpr int64_t kMost = (256 << 20) / (2 * kColumns);  // 256 MiB of BF16.
    return std::clamp(rows / 2 / kPeriod * kPeriod, kPeriod, kMost);
  }
  Dtype held() const { return kind == Kind::kCast ? Dtype::kF32 : Dtype::kBf16; }
  int64_t elements() const { return rows * kColumns; }

  // Calls `add(manifest, tensor's number, first row, its rows)` for each tensor.
  template <typename Add>
  Manifest Make(const Add& add, Manifest manifest = {}) const {
    uint32_t number = 0;
    for (int64_t row = 0; row < rows; row += rows_of_tensor(), ++number) {
      const int64_t count = std::min(rows - row, rows_of_tensor());
      manifest.AddTensor(absl::StrCat("layer.", number), {count, kColumns}, held());
      add(manifest, number, row, count);
    }
    return manifest;
  }

  Manifest OfTrainer() const {
    const uint64_t bytes = SizeBytes(held());
    Manifest manifest;
    manifest.AddRegion("weights", static_cast<uint64_t>(elements()) * bytes);
    return Make(
        [&](Manifest& m, uint32_t number, int64_t row, int64_t count) {
          m.AddShard(number, Format{held()}, Box({0, 0}, {count, kColumns}),
                     {0, static_cast<uint64_t>(row * kColumns) * bytes, {kColumns, 1}});
        },
        manifest);
  }

  // The elements, and behind them the scales of what is quantised.
  Manifest OfWorker() const {
    Manifest manifest;
    manifest.AddRegion("weights", bytes_of_elements() + bytes_of_scales());
    return Make(
        [&](Manifest& m, uint32_t number, int64_t row, int64_t count) {
          const auto first = static_cast<uint64_t>(row * kColumns);
          const Box box({0, 0}, {count, kColumns});
          if (kind == Kind::kFp8) {
            const Quantisation by_blocks;
            m.AddShard(number, Format::Quantised(by_blocks), box, {0, first, {kColumns, 1}});
            m.AddShard(number, Format::Scales(by_blocks),
                       Box({0, 0}, {count / kPeriod, kColumns / kPeriod}),
                       {0,
                        bytes_of_elements() + first / (kPeriod * kPeriod) * 4,
                        {kColumns / kPeriod, 1}});
          } else if (kind == Kind::kTransposed) {
            m.AddShard(number, Format{Dtype::kBf16}, box, {0, first * 2, {1, count}});
          } else {
            m.AddShard(number, Format{Dtype::kBf16}, box, {0, first * 2, {kColumns, 1}});
          }
        },
        manifest);
  }

  uint64_t bytes_of_elements() const {
    return static_cast<uint64_t>(elements()) * (kind == Kind::kFp8 ? 1 : 2);
  }
  uint64_t bytes_of_scales() const {
    return kind == Kind::kFp8 ? static_cast<uint64_t>(elements()) / (kPeriod * kPeriod) * 4 : 0;
  }
};

// The first kPeriod rows of a version in BF16, which all others repeat.
std::vector<uint16_t> FirstRows(uint64_t version) {
  std::vector<uint16_t> rows(kPeriod * kColumns);
  uint64_t state = version * 0x9E3779B97F4A7C15u + 1;
  for (uint16_t& element : rows) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    // Both signs, exponents of a model's weights.
    element = static_cast<uint16_t>((state >> 48 & 0x807F) | (110 + (state >> 40) % 16) << 7);
  }
  return rows;
}

// Writes a version's elements.
absl::Status Fill(const Weights& weights, uint64_t version, const GpuMemory& memory) {
  const std::vector<uint16_t> rows = FirstRows(version);
  std::vector<std::byte> bytes(rows.size() * SizeBytes(weights.held()));
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint32_t f32 = uint32_t{rows[i]} << 16;
    if (weights.held() == Dtype::kF32) std::memcpy(&bytes[i * 4], &f32, 4);
    if (weights.held() == Dtype::kBf16) std::memcpy(&bytes[i * 2], &rows[i], 2);
  }
  std::byte* const begin = memory.span.data;
  WAYBILL_RETURN_IF_ERROR(memory.Copy(begin, bytes.data(), bytes.size()));
  for (uint64_t done = bytes.size(); done < memory.span.size_bytes; done *= 2) {
    const uint64_t more = std::min(done, memory.span.size_bytes - done);
    WAYBILL_RETURN_IF_ERROR(memory.Copy(begin + done, begin, more));
  }
  return absl::OkStatus();
}

// Compares pieces of what a worker has got with what it is to be. Returns "right", or what is
// wrong.
absl::StatusOr<std::string> Compare(const Weights& weights, uint64_t version,
                                    const GpuMemory& memory) {
  const std::vector<uint16_t> rows = FirstRows(version);
  std::vector<uint8_t> codes(rows.size());
  std::vector<float> scales(kColumns / kPeriod);
  kernels::QuantiseBlocks(codes.data(), kColumns, scales.data(), kColumns / kPeriod, rows.data(),
                          kColumns * 2, kPeriod, kColumns, {}, {}, kernels::Wide::kBf16,
                          kernels::Wide::kBf16, kernels::Stores::kCached, nullptr);
  const bool narrow = weights.kind == Kind::kFp8;
  const uint64_t width = narrow ? 1 : 2;
  constexpr int64_t kPiece = 64 << 10;
  std::vector<std::byte> found(kPiece * width);
  for (const int64_t begin :
       {int64_t{0}, (weights.elements() - kPiece) / 2, weights.elements() - kPiece}) {
    const std::byte* const at = memory.span.data + static_cast<uint64_t>(begin) * width;
    WAYBILL_RETURN_IF_ERROR(memory.Copy(found.data(), at, found.size()));
    for (int64_t i = begin; i < begin + kPiece; ++i) {
      int64_t in_rows = i;
      if (weights.kind == Kind::kTransposed) {
        const int64_t most = weights.rows_of_tensor();
        const int64_t row = i / kColumns / most * most;  // The first one of its tensor.
        const int64_t count = std::min(weights.rows - row, most);
        const int64_t in_tensor = i - row * kColumns;
        in_rows = in_tensor % count * kColumns + in_tensor / count;
      }
      in_rows %= kPeriod * kColumns;
      const void* const expected =
          narrow ? static_cast<const void*>(&codes[in_rows]) : &rows[in_rows];
      if (std::memcmp(&found[(i - begin) * width], expected, width) != 0) {
        return absl::StrCat("wrong: element ", i, " is not that of version ", version);
      }
    }
  }
  if (narrow) {
    std::vector<float> got(scales.size());
    for (const uint64_t from : {uint64_t{0}, weights.bytes_of_scales() - got.size() * 4}) {
      WAYBILL_RETURN_IF_ERROR(memory.Copy(
          got.data(), memory.span.data + weights.bytes_of_elements() + from, got.size() * 4));
      if (got != scales) return absl::StrCat("wrong: scales at byte ", from);
    }
  }
  return "right";
}

absl::Status Train(const RankIdentity& identity, const Weights& weights, const GpuMemory& memory,
                   std::unique_ptr<Fabric> fabric) {
  WAYBILL_ASSIGN_OR_RETURN(
      const auto trainer,
      Trainer::Join({.identity = identity, .engine = SenderEngineOptions::ForGpu()},
                    weights.OfTrainer(), {memory.span}, std::move(fabric)));
  std::cout << "joined" << std::endl;
  for (uint64_t version = 0; std::cin >> version;) {
    WAYBILL_RETURN_IF_ERROR(Fill(weights, version, memory));
    const uint64_t before = waits;
    const int64_t begin = MonotonicNanoseconds();
    std::cout << "begins" << std::endl;
    absl::Status status = trainer->Publish(
        version, {.timeout = kPatience,
                  .digests = weights.kind == Kind::kUndigested ? Digests::kOff : Digests::kOn});
    if (status.ok()) {
      const auto outcomes = trainer->AwaitOutcome(kPatience);
      status = outcomes.status();
      for (size_t i = 0; status.ok() && i < outcomes->size(); ++i) status = (*outcomes)[i].status;
    }
    // A publish that fails is told; the next one may succeed.
    for (const LaneReport& lane : trainer->report().lanes)
      std::cout << "lane " << lane.path << "\n";
    if (status.ok()) {
      std::cout << "published " << begin << " " << waits - before << std::endl;
    } else {
      std::cout << "failed " << status << std::endl;
    }
  }
  return absl::OkStatus();
}

// When the newest version was shown. The worker's handler hears of it on a thread of its own.
class Shown {
 public:
  void Set(uint64_t version) {
    const std::lock_guard lock(mutex_);
    version_ = version;
    at_ = MonotonicNanoseconds();
    changed_.notify_all();
  }
  int64_t Await(uint64_t version) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return version_ >= version; });
    return at_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t version_ = 0;
  int64_t at_ = 0;
};

absl::Status Serve(const RankIdentity& identity, const Weights& weights, Mode mode,
                   const GpuMemory& memory, std::unique_ptr<Fabric> fabric) {
  Shown shown;
  const WorkerOptions options{
      .identity = identity,
      .engine = {.mode = mode, .verify_threads = ReceiverEngineOptions::kGpuVerifyThreads},
      .handler = [&](const Notice& notice, const WorkerOptions::Answer& answer) {
        if (notice.kind == Notice::Kind::kCommit) shown.Set(notice.version);
        answer(absl::OkStatus());
      }};
  WAYBILL_ASSIGN_OR_RETURN(const auto worker, Worker::Join(options, weights.OfWorker(),
                                                           {memory.span}, std::move(fabric)));
  std::cout << "joined" << std::endl;
  uint64_t before = waits;
  for (uint64_t version = 0; std::cin >> version;) {
    WAYBILL_RETURN_IF_ERROR(worker->AwaitShown(version, 2 * kPatience));
    std::cout << "shown " << shown.Await(version) << " " << waits - before << std::endl;
    WAYBILL_ASSIGN_OR_RETURN(const std::string found, Compare(weights, version, memory));
    before = waits;
    std::cout << found << std::endl;
  }
  return absl::OkStatus();
}

absl::Status Rank(const std::vector<std::string>& words) {
  RankIdentity identity;
  const bool trains = words[1] == "trainer";
  identity.controller = words[2];
  FabricOptions options;
  WAYBILL_ASSIGN_OR_RETURN(options.forced, ParseFabricKind(words[3]));
  Weights weights;
  if (words.size() > 5) {
    WAYBILL_ASSIGN_OR_RETURN(weights.kind, ParseKind(words[5]));
  }
  const int64_t bytes = std::strtoll(words[4].c_str(), nullptr, 10) * 1'000'000;
  const int64_t each = kPeriod * kColumns * int64_t{SizeBytes(weights.held())};
  weights.rows = std::max<int64_t>(1, bytes / each) * kPeriod;
  const Manifest manifest = trains ? weights.OfTrainer() : weights.OfWorker();
  const bool created = words.size() > 6 && words[6] == "created";
  WAYBILL_ASSIGN_OR_RETURN(const GpuMemory memory,
                           GpuMemory::Allocate(manifest.region_bytes(0), created));
  if (words.size() > 7) {
    WAYBILL_RETURN_IF_ERROR(TakeAllBut(std::strtoull(words[7].c_str(), nullptr, 10), memory));
  }
  CountWaits();
  WAYBILL_ASSIGN_OR_RETURN(auto fabric, MakeFabric(options));
  if (trains) return Train(identity, weights, memory, std::move(fabric));
  // What no network reaches directly arrives in pinned host memory.
  const Mode mode = words[3] == "tcp" ? Mode::kShadowCopy : Mode::kInPlace;
  return Serve(identity, weights, mode, memory, std::move(fabric));
}

absl::Status Copies(const std::string& megabytes) {
  const uint64_t size_bytes = std::strtoull(megabytes.c_str(), nullptr, 10) * 1'000'000;
  WAYBILL_ASSIGN_OR_RETURN(const GpuMemory from, GpuMemory::Allocate(size_bytes));
  WAYBILL_ASSIGN_OR_RETURN(const GpuMemory to, GpuMemory::Allocate(size_bytes));
  std::cout << "gpu " << from.device->name() << std::endl;
  std::vector<std::byte> host(size_bytes);
  WAYBILL_RETURN_IF_ERROR(from.device->Pin(host.data(), size_bytes));
  const auto measure = [&](const char* name, void* target, const void* source) -> absl::Status {
    for (int i = 0; i < 11; ++i) {
      const int64_t begin = MonotonicNanoseconds();
      WAYBILL_RETURN_IF_ERROR(from.Copy(target, source, size_bytes));
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
  const std::vector<std::string> words(argv, argv + argc);
  const std::string role = argc > 1 ? words[1] : "";
  const bool is_rank = (role == "trainer" || role == "worker") && argc >= 5 && argc <= 8;
  if (!is_rank && !(role == "copies" && argc == 3)) {
    std::cerr
        << "usage: gpu_rank trainer|worker CONTROLLER FABRIC MEGABYTES [KIND [MEMORY [SPARE]]]\n"
           "       gpu_rank copies MEGABYTES\n";
    return 2;
  }
  const absl::Status status = is_rank ? waybill::Rank(words) : waybill::Copies(words[2]);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
