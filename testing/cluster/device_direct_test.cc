// SPDX-License-Identifier: Apache-2.0

// Updates that are written into a GPU's memory at their final address, in place: by NICs, and over
// the local fabric. The driver, the GPUs and the NICs are fakes: host code that touches the memory
// crashes, and so does a NIC that has no dma-buf of it.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/fabric/choice/choice_fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "core/plan/chunks.h"
#include "testing/cluster/cluster_model.h"
#include "testing/cluster/direct_test.h"
#include "testing/cluster/quantised_cases.h"
#include "testing/fake_cuda/created_memory.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/fake_cuda/held_stream.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill {
namespace {

// Returns why a worker cannot be made.
absl::Status WhyNoWorker(Fabric* fabric) {
  const auto memory = std::make_shared<DeviceMemory>();
  Manifest manifest;
  manifest.AddTensor("w", {4}, Dtype::kBf16);
  manifest.AddRegion("memory", 8);
  manifest.AddShard(0, Format{Dtype::kBf16}, Box({0}, {4}), {0, 0, {1}});
  return ReceiverEngine::Create(fabric, manifest, {memory->Allocate(8)}, {.mode = Mode::kInPlace},
                                [](const ReceiverEvent&) {})
      .status();
}

// Memory as torch's expandable segments are. What is allocated lies across two allocations of
// cuMemCreate() at least.
class SegmentMemory final : public ClusterMemory {
 public:
  explicit SegmentMemory(CreatedMemory::Exportable exportable = CreatedMemory::Exportable::kYes)
      : exportable_(exportable) {}
  MemorySpan Allocate(size_t size_bytes) override {
    const size_t before = size_bytes / 2 / 256 * 256;
    const size_t count = 2 + size_bytes / CreatedMemory::kAllocationBytes;
    segments_.push_back(std::make_unique<CreatedMemory>(count, exportable_));
    return {MemoryKind::kDevice,
            segments_.back()->data() + CreatedMemory::kAllocationBytes - before, size_bytes};
  }
  void Write(const MemorySpan& to, const std::byte* from) override { copies_.Write(to, from); }
  void Read(const MemorySpan& from, std::byte* to) override { copies_.Read(from, to); }
  // Puts other allocations under the same addresses, as an engine that sleeps and wakes.
  void Remap() {
    for (const auto& segment : segments_) segment->Unmap();
    for (const auto& segment : segments_) segment->Map();
  }

 private:
  const CreatedMemory::Exportable exportable_;
  std::vector<std::unique_ptr<CreatedMemory>> segments_;
  DeviceMemory copies_;
};

class DirectUpdateTest
    : public DirectTest,
      public testing::WithParamInterface<std::tuple<FakeCudaWrites, Digests, uint32_t>> {};

// Rows, fused rows, columns, and a transposed part.
TEST_P(DirectUpdateTest, EveryByteIsWrittenByTheNicAndVerifiedByTheGpu) {
  const auto [writes, digests, threads] = GetParam();
  SayOfGpu(writes);
  Make(InPlace({.trainers = 3, .workers = 2, .digests = digests, .verify_threads = threads}));
  const uint64_t copied = FakeCudaNow().bytes_to_device;
  for (uint64_t version = 1; version <= 3; ++version) ASSERT_EQ(PublishAndCheck(version), "");
  EXPECT_EQ(FakeCudaNow().bytes_to_device, copied);
}

INSTANTIATE_TEST_SUITE_P(All, DirectUpdateTest,
                         testing::Combine(testing::Values(kFakeCudaReadBack, kFakeCudaFlushes,
                                                          kFakeCudaOrders, kFakeCudaCoherent),
                                          testing::Values(Digests::kOn, Digests::kOff),
                                          testing::Values(0u, 2u)));

INSTANTIATE_TEST_SUITE_P(All, DirectNetworkTest,
                         testing::Values(DirectNetwork::kVerbs, DirectNetwork::kLocal),
                         [](const auto& info) { return NameOf(info.param); });

// From the tensors to their final addresses, or by way of slots on the trainer's GPU, where rows
// are turned: nothing but digests crosses the host.
TEST_P(DirectNetworkTest, FromGpuToGpuNoWeightsCrossTheHost) {
  for (const uint32_t threads : {0u, 2u}) {
    SayOfGpu(kFakeCudaOrders);
    ClusterOptions options = InPlace({.trainers = 3, .workers = 2});
    options.trainer_memory = std::make_shared<DeviceMemory>();
    options.direct = true;
    options.trainer.direct_run_bytes = 1;
    options.trainer.stage_threads = threads;
    options.trainer.announced_bytes = 1;
    options.verify_threads = threads;
    Make(options);
    for (uint64_t version = 1; version <= 3; ++version) ASSERT_EQ(PublishAndCheck(version), "");
    const FakeCudaUse before = FakeCudaNow();
    cluster_->FillTrainers(4);
    const uint64_t filled = FakeCudaNow().bytes_to_device;
    ASSERT_EQ(cluster_->Publish(4).message(), "");
    uint64_t staged = 0, pieces = 0;
    for (uint32_t t = 0; t < 3; ++t) {
      staged += cluster_->trainer(t).counts().staged_bytes;
      for (const Chunk& chunk : CutIntoChunks(cluster_->tables().senders[t], 8 << 10).chunks) {
        pieces += chunk.piece_count;
      }
    }
    EXPECT_GT(staged, 0u);
    EXPECT_EQ(FakeCudaNow().device_waits, before.device_waits);
    // Each end digests each piece, and copies its sum of 8 bytes.
    EXPECT_EQ(FakeCudaNow().bytes_to_host - before.bytes_to_host, 2 * pieces * 8);
    EXPECT_EQ(FakeCudaNow().bytes_to_device, filled);
    cluster_.reset();
  }
}

// One tensor of many chunks.
class LongModel final : public ClusterModel {
 public:
  static constexpr int64_t kChunks = 1000;

  Manifest Trainer(uint32_t) const override {
    Manifest manifest;
    manifest.AddTensor("long", {kElements}, Dtype::kBf16);
    manifest.AddRegion("memory", kElements * 2);
    manifest.AddShard(0, Format{Dtype::kBf16}, Box({0}, {kElements}), {0, 0, {1}});
    return manifest;
  }
  Manifest Worker(uint32_t) const override { return Trainer(0); }
  void Fill(uint64_t version, const Manifest&, std::byte* memory) const override {
    for (uint64_t i = 0; i < kElements * 2; ++i) {
      memory[i] = static_cast<std::byte>((i / 4096 + i * 7 + version * 13) & 0x3F);
    }
  }
  void Expect(uint64_t version, const Manifest& worker,
              std::vector<std::vector<std::byte>>& regions) const override {
    Fill(version, worker, regions[0].data());
  }

 private:
  static constexpr int64_t kElements = kChunks * kCutBytes / 2;
};

struct RoundTripCase {
  const char* name;
  DirectNetwork network;
  bool direct;  // Sent from the tensor itself.
  uint32_t threads;
};

class RoundTripTest : public DirectTest, public testing::WithParamInterface<RoundTripCase> {
 protected:
  RoundTripTest() : DirectTest(GetParam().network) {}
};

// A round trip takes as long as a copy of tens of MiB, and a chunk has one. So at both ends
// together there is one for 32 chunks at most, and some for each update.
TEST_P(RoundTripTest, AGpuIsWaitedForOnceForManyChunks) {
  SayOfGpu(kFakeCudaOrders);
  ClusterOptions options = InPlace({.trainers = 1, .workers = 1});
  options.model = std::make_shared<LongModel>();
  options.trainer_memory = std::make_shared<DeviceMemory>();
  options.direct = GetParam().direct;
  options.trainer = {.ring_bytes = 512 * kCutBytes,
                     .chunk_bytes = kCutBytes,
                     .stage_threads = GetParam().threads,
                     .announced_bytes = 1};
  options.verify_threads = GetParam().threads;
  Make(options);
  ASSERT_EQ(PublishAndCheck(1), "");
  cluster_->FillTrainers(2);
  const FakeCudaUse before = FakeCudaNow();
  ASSERT_EQ(cluster_->Publish(2).message(), "");
  EXPECT_LE(FakeCudaNow().round_trips - before.round_trips, LongModel::kChunks / 32 + 16);
  // Chunks that are neighbours at both ends are one copy there, and one launch.
  if (GetParam().direct) {
    EXPECT_LE(FakeCudaNow().queued - before.queued, LongModel::kChunks / 4);
  }
  EXPECT_EQ(FakeCudaNow().device_waits, before.device_waits);
  EXPECT_TRUE(cluster_->Shows(0, 2));
}

INSTANTIATE_TEST_SUITE_P(
    All, RoundTripTest,
    testing::Values(RoundTripCase{"direct_verbs", DirectNetwork::kVerbs, true, 0},
                    RoundTripCase{"direct_verbs_by_threads", DirectNetwork::kVerbs, true, 2},
                    RoundTripCase{"direct_local", DirectNetwork::kLocal, true, 0},
                    RoundTripCase{"staged_verbs", DirectNetwork::kVerbs, false, 0},
                    RoundTripCase{"staged_local", DirectNetwork::kLocal, false, 0}),
    [](const auto& info) { return info.param.name; });

// As torch's expandable segments are, at both ends: also while an engine sleeps and wakes.
TEST_P(DirectNetworkTest, MemoryOfSeveralAllocationsIsReadAndWrittenWhereItIs) {
  for (const bool ordered : {true, false}) {
    SayOfGpu(ordered ? kFakeCudaOrders : kFakeCudaFlushes);
    FakeCudaSayOfFiles(0, ordered);  // The slots are of either kind.
    ClusterOptions options = InPlace({.trainers = 1, .workers = 1});
    const auto tensors = std::make_shared<SegmentMemory>();
    const auto engine = std::make_shared<SegmentMemory>();
    options.trainer_memory = tensors;
    options.worker_memory = engine;
    options.direct = true;
    options.trainer.direct_run_bytes = 1;
    Make(options);
    ASSERT_EQ(PublishAndCheck(1), "");
    const uint64_t staged = cluster_->trainer(0).counts().staged_bytes;
    EXPECT_LT(staged, cluster_->plan().sender_bytes(0));
    tensors->Remap();
    engine->Remap();
    cluster_->FillTrainers(2);
    const uint64_t filled = FakeCudaNow().bytes_to_device;
    ASSERT_EQ(cluster_->Publish(2).message(), "");
    EXPECT_EQ(FakeCudaNow().bytes_to_device, filled);
    for (uint32_t w = 0; w < workers_; ++w) EXPECT_TRUE(cluster_->Shows(w, 2));
    EXPECT_EQ(cluster_->trainer(0).counts().staged_bytes, staged);
    EXPECT_EQ(cluster_->worker(0).counts().renewals, 1u);
    cluster_.reset();
  }
}

// An engine's stream and a trainer's go on with what they do: whoever waited for them, or for the
// GPU as a whole, would wait for ever.
TEST_P(DirectNetworkTest, AnUpdateWaitsForNoStreamButItsOwn) {
  SayOfGpu(kFakeCudaFlushes);
  ClusterOptions options = InPlace({.trainers = 3, .workers = 2});
  options.trainer_memory = std::make_shared<DeviceMemory>();
  options.direct = true;
  Make(options);
  ASSERT_EQ(PublishAndCheck(1), "");
  HeldStream busy;
  ASSERT_EQ(PublishAndCheck(2), "");
  busy.Release();
}

// A trainer whose GPU does nothing sends all that needs no kernel before it is digested.
TEST_F(DirectTest, DigestsDelayNothingThatIsSentFromATensor) {
  SayOfGpu(kFakeCudaOrders);
  ClusterOptions options = {.trainers = 1, .workers = 1};
  options.trainer_memory = std::make_shared<DeviceMemory>();
  options.direct = true;
  options.trainer.direct_run_bytes = 1;
  options.trainer.stage_threads = 1;
  Make(options);
  ASSERT_EQ(PublishAndCheck(1), "");
  const TransferCounts whole = cluster_->trainer(0).counts();  // The counts of a whole update.
  ASSERT_GT(whole.bytes, whole.staged_bytes);
  cluster_->FillTrainers(2);
  ASSERT_EQ(cluster_->Prepare(2).message(), "");
  FakeCudaHold(true);
  EXPECT_EQ(cluster_->Start(0).message(), "");
  EXPECT_TRUE(cluster_->StepUntil(
      [&] { return cluster_->trainer(0).counts().bytes == whole.bytes - whole.staged_bytes; }));
  FakeCudaHold(false);
  ASSERT_TRUE(cluster_->StepUntil([&] { return cluster_->worker_events(0).size() == 2; }));
  ASSERT_EQ(cluster_->Commit().message(), "");
  EXPECT_TRUE(cluster_->Shows(0, 2));
}

TEST_P(DirectNetworkTest, HostTensorsArriveInAGpusMemory) {
  SayOfGpu(kFakeCudaOrders);
  Make(InPlace({.trainers = 3, .workers = 2}));
  for (uint64_t version = 1; version <= 3; ++version) ASSERT_EQ(PublishAndCheck(version), "");
}

TEST_P(DirectNetworkTest, AGpuThatFailsToDigestWhatItSendsFailsTheUpdate) {
  SayOfGpu(kFakeCudaOrders);
  ClusterOptions options;
  options.trainer_memory = std::make_shared<DeviceMemory>();
  options.direct = true;
  options.trainer.direct_run_bytes = 1;
  Make(options);
  ASSERT_EQ(PublishAndCheck(1), "");
  for (const int64_t after : {0, 1, 2, 5, 9}) {
    cluster_->FillTrainers(2);
    ASSERT_TRUE(cluster_->Prepare(2).ok());
    FakeCudaFail(after);
    const absl::Status status = cluster_->StartAndArrive();
    FakeCudaFail(-1);
    EXPECT_TRUE(absl::StrContains(status.message(), "stage from a GPU: ")) << status;
    cluster_->Abort(/*begun=*/true);
    ASSERT_TRUE(cluster_->UntilStopped());
    ASSERT_TRUE(cluster_->Shows(0, 1));
  }
  ASSERT_EQ(PublishAndCheck(3), "");
}

// Ways in which NICs cannot have a dma-buf of a GPU's memory.
enum class NoDmabuf { kDriverHasNone, kDriverFails, kNicTakesNone };

class NoDmabufTest : public DirectTest, public testing::WithParamInterface<NoDmabuf> {
 protected:
  void SetUp() override {
    nic_.dmabuf = GetParam() != NoDmabuf::kNicTakesNone;
    if (GetParam() == NoDmabuf::kDriverFails) FakeCudaRefuse(kFakeCudaDmabuf);
  }
  ~NoDmabufTest() override { FakeCudaRefuse(kFakeCudaNone); }

  static void SayOfThisGpu(FakeCudaWrites writes = kFakeCudaOrders) {
    SayOfGpu(writes, /*exports_dmabuf=*/GetParam() != NoDmabuf::kDriverHasNone);
  }
  std::string PathOfFirstLane() { return cluster_->trainer(0).ReportLanes()[0].path; }
};

INSTANTIATE_TEST_SUITE_P(All, NoDmabufTest,
                         testing::Values(NoDmabuf::kDriverHasNone, NoDmabuf::kDriverFails,
                                         NoDmabuf::kNicTakesNone));

TEST_P(NoDmabufTest, WithoutAModuleForPeerMemoryTensorsAreStagedAndItIsSaid) {
  SayOfThisGpu();
  ClusterOptions options;
  options.trainer_memory = std::make_shared<DeviceMemory>();
  options.direct = true;
  options.trainer.direct_run_bytes = 1;
  Make(options);
  ASSERT_EQ(PublishAndCheck(1), "");
  EXPECT_EQ(cluster_->trainer(0).counts().staged_bytes, cluster_->plan().sender_bytes(0));
  const std::string path = PathOfFirstLane();
  for (const char* said : {"; tensors are staged: register \"weights\"",
                           "; what is staged goes through host memory: register \"staging slots",
                           GetParam() == NoDmabuf::kNicTakesNone
                               ? "and as a dma-buf: Operation not supported (errno 95)"
                               : " as a dma-buf: "}) {
    EXPECT_TRUE(absl::StrContains(path, said)) << said << "\n" << path;
  }
}

TEST_P(NoDmabufTest, AStagedTensorThatIsFreedIsNamedAndNothingIsSent) {
  SayOfThisGpu();
  ExpectAFreedTensorIsNamed({});
}

TEST_P(NoDmabufTest, WithAModuleForPeerMemoryNicsReadAndWriteGpusAndItIsSaid) {
  nic_.peer_memory = FakeCudaPeerMemory;
  for (const FakeCudaWrites writes : {kFakeCudaOrders, kFakeCudaFlushes, kFakeCudaReadBack}) {
    for (const Mode mode : {Mode::kShadow, Mode::kShadowCopy, Mode::kInPlace}) {
      SayOfThisGpu(writes);
      ClusterOptions options = IntoGpu(mode, {.trainers = 3, .workers = 2});
      options.trainer_memory = std::make_shared<DeviceMemory>();
      options.direct = true;
      Make(options);
      for (uint64_t version = 1; version <= 2; ++version) ASSERT_EQ(PublishAndCheck(version), "");
      cluster_->FillTrainers(3);
      const uint64_t filled = FakeCudaNow().bytes_to_device;
      ASSERT_EQ(cluster_->Publish(3).message(), "");
      EXPECT_EQ(FakeCudaNow().bytes_to_device, filled);
      EXPECT_TRUE(absl::StrContains(
          PathOfFirstLane(),
          absl::StrCat("; memory of GPUs is registered by the module for peer memory, because ",
                       GetParam() == NoDmabuf::kNicTakesNone
                           ? "mlx5_0 does not take its dma-buf: Operation not supported"
                           : "its driver exports no dma-buf")))
          << PathOfFirstLane();
      cluster_.reset();
    }
  }
}

TEST_F(DirectTest, ASecondRegionThatTheNicRefusesIsNamedAndNothingStaysRegistered) {
  SayOfGpu(kFakeCudaOrders);
  network_.Host("a").AddDevice("mlx5_0");
  const auto fabric = *MakeVerbsFabric({.library = &network_.Host("a")});
  const uint64_t before = network_.Host("a").counts("mlx5_0").registrations;
  DeviceMemory memory;
  Manifest manifest;
  manifest.AddTensor("w", {8}, Dtype::kBf16);
  for (uint32_t r = 0; r < 2; ++r) {
    manifest.AddRegion(absl::StrCat("part ", r), 8);
    manifest.AddShard(0, Format{Dtype::kBf16}, Box({4 * r}, {4 * r + 4}), {r, 0, {1}});
  }
  network_.Host("a").FailRegistrations("mlx5_0", {.error = EINVAL, .spared_bytes = 0, .first = 1});
  const absl::Status status =
      ReceiverEngine::Create(fabric.get(), manifest, {memory.Allocate(8), memory.Allocate(8)},
                             {.mode = Mode::kInPlace}, [](const ReceiverEvent&) {})
          .status();
  // The one of the higher address comes second.
  EXPECT_TRUE(absl::StrContains(status.message(), "register \"part "));
  EXPECT_TRUE(absl::StrContains(status.message(), "\" (8 bytes) with mlx5_0: ")) << status;
  EXPECT_EQ(network_.Host("a").counts("mlx5_0").registrations, before);
}

TEST_F(DirectTest, ASecondTensorThatTheNicRefusesIsStagedAndTheFirstIsNot) {
  SayOfGpu(kFakeCudaOrders);
  network_.Host("a").AddDevice("mlx5_0");
  const auto fabric = *MakeVerbsFabric({.library = &network_.Host("a")});
  DeviceMemory memory;
  const MemorySpan first = memory.Allocate(8192), second = memory.Allocate(8192);
  const auto area =
      *StagingArea::Create(fabric.get(), {.ring_bytes = 64 << 10, .chunk_bytes = 8 << 10});
  // The slots on the GPU, then the tensors.
  network_.Host("a").FailRegistrations("mlx5_0", {.error = EINVAL, .first = 2});
  area->AddSource(first, "first");
  area->AddSource(second, "second");
  EXPECT_NE(area->FindSource(first).region, RegionId::kNone);
  EXPECT_EQ(area->FindSource(second).region, RegionId::kNone);
  EXPECT_TRUE(absl::StartsWith(area->why_staged(), "register \"second\" (8192 bytes) with "))
      << area->why_staged();
  EXPECT_EQ(area->why_no_device_slots(), "");
}

TEST_P(DirectNetworkTest, TensorsOfAnotherGpuThanTheWorkersArrive) {
  for (const int gpu : {0, 1}) {
    FakeCudaSayOfNics(gpu, kFakeCudaOrders);
  }
  ClusterOptions options = InPlace({.trainers = 3, .workers = 2});
  options.trainer_memory = std::make_shared<DeviceMemory>(1);
  options.direct = true;
  options.trainer.direct_run_bytes = 1;
  Make(options);
  for (uint64_t version = 1; version <= 2; ++version) ASSERT_EQ(PublishAndCheck(version), "");
  cluster_->FillTrainers(3);
  const uint64_t filled = FakeCudaNow().bytes_to_device;
  ASSERT_EQ(cluster_->Publish(3).message(), "");
  EXPECT_EQ(FakeCudaNow().bytes_to_device, filled);
}

// Memory of cuMemCreate(): each allocation is opened by a file of its own.
class SegmentTest : public LocalDirectTest {
 protected:
  SegmentTest() { SayOfGpu(kFakeCudaOrders, /*exports_dmabuf=*/false); }
  ~SegmentTest() override {
    FakeCudaRefuse(kFakeCudaNone);
    cluster_.reset();
    options_ = {};
    EXPECT_EQ(FakeCudaNow().allocations, 0u);
    EXPECT_EQ(FakeCudaNow().handles, 0u);
    EXPECT_EQ(FakeCudaNow().reserved, 0u);
  }

  // A job of that many trainers, whose tensors lie in segments.
  void MakeJob(uint32_t trainers,
               CreatedMemory::Exportable exportable = CreatedMemory::Exportable::kYes) {
    options_ = InPlace({.trainers = trainers});
    options_.worker_memory = std::make_shared<SegmentMemory>();
    options_.trainer_memory = std::make_shared<SegmentMemory>(exportable);
    options_.direct = true;
    options_.trainer.direct_run_bytes = 1;
    options_.trainer.announced_bytes = 1;
    Make(options_);
  }
  std::string PathOfFirstLane() { return cluster_->trainer(0).ReportLanes()[0].path; }

  // Publishes twice, and expects that tensors were packed into slots on the GPU, from where they
  // went to the worker's GPU, and that the lane says why.
  void ExpectSlotsOnTheGpu(const std::string& why) {
    ASSERT_EQ(PublishAndCheck(1), "");
    cluster_->FillTrainers(2);
    const FakeCudaUse before = FakeCudaNow();
    ASSERT_EQ(cluster_->Publish(2).message(), "");
    EXPECT_EQ(cluster_->trainer(0).counts().staged_bytes, cluster_->plan().sender_bytes(0));
    EXPECT_EQ(FakeCudaNow().bytes_to_device, before.bytes_to_device);
    EXPECT_EQ(FakeCudaNow().bytes_to_host - before.bytes_to_host, 2 * Pieces() * 8);
    EXPECT_TRUE(absl::StartsWith(PathOfFirstLane(),
                                 "local: shared memory, also of GPUs; tensors are staged: " + why))
        << PathOfFirstLane();
  }
  uint64_t Pieces() const {
    uint64_t pieces = 0;
    for (const RouteTable& table : cluster_->tables().senders) {
      for (const Chunk& chunk : CutIntoChunks(table, 8 << 10).chunks) pieces += chunk.piece_count;
    }
    return pieces;
  }

  ClusterOptions options_;
};

TEST_F(SegmentTest, TensorsAreCopiedFromWhereTheyAre) {
  MakeJob(/*trainers=*/2);
  for (uint64_t version = 1; version <= 3; ++version) ASSERT_EQ(PublishAndCheck(version), "");
  EXPECT_EQ(PathOfFirstLane(), "local: shared memory, also of GPUs");
  cluster_->FillTrainers(4);
  const FakeCudaUse before = FakeCudaNow();
  ASSERT_EQ(cluster_->Publish(4).message(), "");
  EXPECT_EQ(FakeCudaNow().bytes_to_device, before.bytes_to_device);
  // Each end digests each piece, and copies its sum of 8 bytes.
  EXPECT_EQ(FakeCudaNow().bytes_to_host - before.bytes_to_host, 2 * Pieces() * 8);
}

TEST_F(SegmentTest, TensorsThatWereNotCreatedForOtherProcessesGoThroughSlotsOnTheGpu) {
  MakeJob(/*trainers=*/1, CreatedMemory::Exportable::kNo);
  ExpectSlotsOnTheGpu("register \"weights\": no other process can open byte 0 of ");
}

// Other processes open such slots also where they have PID namespaces of their own.
TEST_F(SegmentTest, SlotsAreCreatedForOtherProcessesWhereTheGpuHasSuchMemory) {
  FakeCudaSayOfFiles(0, true);
  for (const FakeCudaStep step : {kFakeCudaNone, kFakeCudaExport}) {
    FakeCudaRefuse(step);  // Where nothing is exported, allocated ones take their place.
    const uint64_t before = FakeCudaNow().reserved;
    MakeJob(/*trainers=*/1, CreatedMemory::Exportable::kNo);
    const uint64_t of_tensors = 1, of_workers = 2 * cluster_->worker_manifest(0).region_count();
    EXPECT_EQ(FakeCudaNow().reserved - before,
              of_tensors + of_workers + (step == kFakeCudaNone ? 1 : 0));
    ExpectSlotsOnTheGpu("register \"weights\": no other process can open byte 0 of ");
    cluster_.reset();
    options_ = {};
  }
  FakeCudaSayOfFiles(0, false);
}

TEST_F(SegmentTest, TensorsThatTheDriverDoesNotExportGoThroughSlotsOnTheGpu) {
  FakeCudaRefuse(kFakeCudaExport);
  MakeJob(/*trainers=*/1);
  ExpectSlotsOnTheGpu("register \"weights\": export an allocation of 2097152 bytes to other ");
}

TEST_F(SegmentTest, TensorsThatTheWorkerCannotOpenGoThroughSlotsOnTheGpu) {
  for (const FakeCudaStep step :
       {kFakeCudaImport, kFakeCudaReserve, kFakeCudaMap, kFakeCudaAllow}) {
    // The segments are mapped when they are allocated.
    FakeCudaRefuse(kFakeCudaNone);
    MakeJob(/*trainers=*/1);
    FakeCudaRefuse(step);
    ASSERT_EQ(cluster_->Connect().message(), "");  // With lanes of their own.
    ExpectSlotsOnTheGpu(step == kFakeCudaImport
                            ? "import an allocation of 2097152 bytes of another process: "
                            : "map 1 allocations of ");
    cluster_.reset();
  }
}

TEST_F(SegmentTest, AnUpdateFailsWhenAnExportFailsAndNewLanesGoWithoutExports) {
  MakeJob(/*trainers=*/1);
  FakeCudaRefuse(kFakeCudaExport);
  cluster_->FillTrainers(1);
  const absl::Status status = cluster_->Publish(1);
  EXPECT_TRUE(absl::StrContains(status.message(),
                                "export an allocation of 2097152 bytes to other processes: "))
      << status;
  ASSERT_EQ(cluster_->Connect().message(), "");
  ExpectSlotsOnTheGpu("export an allocation of 2097152 bytes to other processes: ");
  FakeCudaRefuse(kFakeCudaNone);
  ASSERT_EQ(cluster_->Connect().message(), "");
  ASSERT_EQ(PublishAndCheck(3), "");
  EXPECT_EQ(PathOfFirstLane(), "local: shared memory, also of GPUs");
}

TEST_F(SegmentTest, AnUpdateFailsWhenAnImportFailsAndNothingStaysMapped) {
  for (const FakeCudaStep step : {kFakeCudaImport, kFakeCudaMap}) {
    MakeJob(/*trainers=*/1);
    const FakeCudaUse before = FakeCudaNow();
    FakeCudaRefuse(step);
    cluster_->FillTrainers(1);
    const absl::Status status = cluster_->Publish(1);
    EXPECT_TRUE(absl::StrContains(status.message(), "allocation")) << status;
    EXPECT_EQ(FakeCudaNow().reserved, before.reserved);
    EXPECT_EQ(FakeCudaNow().handles, before.handles);
    FakeCudaRefuse(kFakeCudaNone);
    ASSERT_EQ(cluster_->Connect().message(), "");
    ASSERT_EQ(PublishAndCheck(2), "");
    cluster_.reset();
  }
}

TEST_F(SegmentTest, AllocationsThatWereExchangedAreOpenedAnewAndTheOldOnesAreGone) {
  MakeJob(/*trainers=*/1);
  ASSERT_EQ(PublishAndCheck(1), "");
  const FakeCudaUse before = FakeCudaNow();
  const uint64_t staged = cluster_->trainer(0).counts().staged_bytes;
  static_cast<SegmentMemory&>(*options_.trainer_memory).Remap();
  ASSERT_EQ(PublishAndCheck(2), "");
  EXPECT_EQ(cluster_->trainer(0).counts().staged_bytes, staged);
  EXPECT_EQ(FakeCudaNow().allocations, before.allocations);
  EXPECT_EQ(FakeCudaNow().reserved, before.reserved);
  static_cast<SegmentMemory&>(*options_.worker_memory).Remap();
  ASSERT_EQ(PublishAndCheck(3), "");
  EXPECT_EQ(cluster_->worker(0).counts().renewals, 1u);
}

TEST_F(SegmentTest, ATrainerThatDiesLeavesNoMappingBehind) {
  MakeJob(/*trainers=*/1);
  const FakeCudaUse before = FakeCudaNow();
  ASSERT_EQ(PublishAndCheck(1), "");
  EXPECT_GT(FakeCudaNow().reserved, before.reserved);
  cluster_->KillTrainer(0);
  EXPECT_TRUE(cluster_->StepUntil([&] { return FakeCudaNow().reserved == before.reserved; }));
}

// An engine that sleeps gives its pages back, and takes others when it wakes, under the same
// addresses.
TEST_P(DirectNetworkTest, MemoryUnderWhichOtherPagesWerePutIsRegisteredAgain) {
  for (const Digests digests : {Digests::kOn, Digests::kOff}) {
    SayOfGpu(kFakeCudaOrders);
    ClusterOptions options = InPlace({.digests = digests});
    const auto tensors = std::make_shared<DeviceMemory>();
    options.trainer_memory = tensors;
    options.direct = true;
    options.trainer.direct_run_bytes = 1;
    Make(options);
    ASSERT_EQ(PublishAndCheck(1), "");
    EXPECT_EQ(cluster_->worker(0).counts().renewals, 0u);
    for (void* memory : static_cast<DeviceMemory&>(*options.worker_memory).all()) {
      FakeCudaRemap(memory);
    }
    ASSERT_EQ(PublishAndCheck(2), "");
    EXPECT_EQ(cluster_->worker(0).counts().renewals, 1u);
    for (void* memory : tensors->all()) FakeCudaRemap(memory);
    const uint64_t staged = cluster_->trainer(0).counts().staged_bytes;
    ASSERT_EQ(PublishAndCheck(3), "");
    EXPECT_EQ(cluster_->trainer(0).counts().staged_bytes, staged);
    // The tensors are small, and all of them share a block.
    EXPECT_EQ(cluster_->worker(0).counts().renewals, 2u);
    cluster_.reset();
  }
}

// As tied parameters are, and views.
TEST_F(DirectTest, SourcesThatShareMemoryAreAllRegisteredAgain) {
  SayOfGpu(kFakeCudaOrders);
  network_.Host("a").AddDevice("mlx5_0");
  const auto fabric = *MakeVerbsFabric({.library = &network_.Host("a")});
  const auto memory = std::make_shared<DeviceMemory>();
  const MemorySpan whole = memory->Allocate(20'000);
  MemorySpan part = whole;
  part.data += 4096;
  part.size_bytes = 5000;
  MemorySpan beginning = whole;
  beginning.size_bytes = 100;
  const auto area =
      *StagingArea::Create(fabric.get(), {.ring_bytes = 64 << 10, .chunk_bytes = 8 << 10});
  const uint64_t before = network_.Host("a").counts("mlx5_0").registrations;
  for (const MemorySpan& span : {beginning, whole, part, whole}) area->AddSource(span, "tensor");
  EXPECT_EQ(area->why_staged(), "");
  // Theirs, and that of the slots.
  EXPECT_EQ(network_.Host("a").counts("mlx5_0").registrations, before + 2);
  const RegionId old = area->FindSource(part).region;
  EXPECT_EQ(area->FindSource(beginning).region, old);
  ASSERT_EQ(area->RenewSources().message(), "");
  EXPECT_EQ(area->FindSource(part).region, old);
  FakeCudaRemap(whole.data);
  ASSERT_EQ(area->RenewSources().message(), "");
  EXPECT_NE(area->FindSource(part).region, old);
  EXPECT_EQ(area->FindSource(whole).region, area->FindSource(part).region);
  EXPECT_EQ(network_.Host("a").counts("mlx5_0").registrations, before + 2);
}

TEST_P(DirectNetworkTest, MemoryThatIsFreedIsNamedAndNothingIsSent) {
  SayOfGpu(kFakeCudaOrders);
  ExpectAFreedTensorIsNamed(InPlace());
}

TEST_P(DirectNetworkTest, AWorkersMemoryThatIsFreedIsNamedAndNothingIsReceived) {
  SayOfGpu(kFakeCudaOrders);
  const ClusterOptions options = InPlace({.trainers = 1, .workers = 1});
  Make(options);
  ASSERT_EQ(PublishAndCheck(1), "");
  static_cast<DeviceMemory&>(*options.worker_memory).FreeFirst();
  const absl::Status status = cluster_->Prepare(2);
  EXPECT_TRUE(absl::StrContains(status.message(), "region \"")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "is no memory of a GPU any more")) << status;
}

class DirectQuantisedTest
    : public DirectTest,
      public testing::WithParamInterface<std::tuple<DirectNetwork, QuantisedCase>> {
 protected:
  DirectQuantisedTest() : DirectTest(std::get<0>(GetParam())) {}
};

TEST_P(DirectQuantisedTest, WhatIsShownIsWhatOnePlaceWouldHaveGiven) {
  SayOfGpu(kFakeCudaFlushes);
  for (const Mode mode : {Mode::kShadow, Mode::kShadowCopy, Mode::kInPlace}) {
    for (const bool from_gpu : {false, true}) {
      ClusterOptions options = IntoGpu(mode, OptionsFor(std::get<1>(GetParam()).model));
      if (from_gpu) {
        options.trainer_memory = std::make_shared<DeviceMemory>();
        options.direct = true;
      }
      Make(options);
      for (uint64_t version = 1; version <= 2; ++version) ASSERT_EQ(PublishAndCheck(version), "");
      cluster_.reset();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DirectQuantisedTest,
                         testing::Combine(testing::Values(DirectNetwork::kVerbs,
                                                          DirectNetwork::kLocal),
                                          testing::ValuesIn(QuantisedCases())),
                         [](const auto& info) {
                           return std::string(NameOf(std::get<0>(info.param))) +
                                  std::get<1>(info.param).name;
                         });

TEST_P(DirectNetworkTest, AnUpdateThatWasGivenUpIsFencedByAnotherRegistration) {
  SayOfGpu(kFakeCudaOrders);
  Make(InPlace());
  ASSERT_EQ(PublishAndCheck(1), "");
  ASSERT_EQ(cluster_->Abandon(2).message(), "");
  ASSERT_EQ(PublishAndCheck(3), "");
  EXPECT_EQ(cluster_->worker(0).counts().renewals, 1u);
}

// Without digests nothing else fails.
TEST_F(DirectTest, AGpuThatFailsToFlushFailsTheUpdate) {
  if (FakeCudaIsHip()) GTEST_SKIP() << "with HIP the host stores to a register, which cannot fail";
  SayOfGpu(kFakeCudaFlushes);
  Make(InPlace({.digests = Digests::kOff}));
  ASSERT_EQ(PublishAndCheck(1), "");
  cluster_->FillTrainers(2);
  ASSERT_TRUE(cluster_->Prepare(2).ok());
  FakeCudaFail(0);
  const absl::Status status = cluster_->StartAndArrive();
  FakeCudaFail(-1);
  EXPECT_TRUE(absl::StrContains(status.message(), "flush what NICs have written")) << status;
  cluster_->Abort(/*begun=*/true);
  ASSERT_TRUE(cluster_->UntilStopped());
  ASSERT_EQ(PublishAndCheck(3), "");
}

TEST_F(DirectTest, AFabricThatReachesHostMemoryOnlyIsNamedWithTheRemedy) {
  SayOfGpu(kFakeCudaOrders);
  const auto tcp = *MakeTcpFabric();
  const absl::Status status = WhyNoWorker(tcp.get());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "mode in-place: region \"memory\" is memory of GPU 0 "
            "(GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00): register \"memory\": the tcp "
            "fabric reaches host memory only; use shadow-copy");
}

TEST_F(LocalDirectTest, MemoryOfAnotherGpuThanTheRanksIsNamed) {
  DeviceMemory first(0), second(1);
  const auto local = *MakeLocalFabric();
  ASSERT_TRUE(local->Register(first.Allocate(8), "a").ok());
  EXPECT_EQ(local->Register(second.Allocate(8), "b").status(),
            absl::InvalidArgumentError(
                "register \"b\": it is memory of GPU 1 (GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae01), "
                "and the rank receives in that of GPU 0 "
                "(GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00); join with a rank for each GPU"));
}

// As a rank has them.
TEST_F(DirectTest, NicsReadBackBehindAChoiceOfNetworks) {
  SayOfGpu(kFakeCudaReadBack);
  cluster_ = std::make_unique<Cluster>(InPlace(), [this](const std::string& name) {
    network_.Host(name).AddDevice("mlx5_0", nic_);
    std::vector<ChoiceMember> members;
    members.push_back({.fabric = *MakeVerbsFabric({.library = &network_.Host(name)})});
    members.push_back({.fabric = *MakeTcpFabric()});
    return *MakeChoiceFabric(std::move(members), "");
  });
  workers_ = 1;
  ASSERT_EQ(cluster_->Connect().message(), "");
  ASSERT_EQ(PublishAndCheck(1), "");
  EXPECT_GT(network_.Host("worker 0").counts("mlx5_0").reads, 0u);
}

class ReadBackTest : public DirectTest, public testing::WithParamInterface<Digests> {
 protected:
  void SetUp() override { SayOfGpu(kFakeCudaReadBack); }
};

INSTANTIATE_TEST_SUITE_P(All, ReadBackTest, testing::Values(Digests::kOn, Digests::kOff));

// The worker receives from each trainer by a NIC of its own. That which does not read back costs
// the update one trainer, whose part others could bring.
TEST_P(ReadBackTest, ANicThatFailsIsAsALaneThatDies) {
  fake_verbs::FakeHost& host = network_.Host("worker 0");
  host.AddDevice("mlx5_1", nic_);
  Make(InPlace({.trainers = 2, .workers = 1, .digests = GetParam()}));
  ASSERT_EQ(PublishAndCheck(1), "");
  cluster_->FillTrainers(2);
  ASSERT_TRUE(cluster_->Prepare(2).ok());
  // The first queue pair of the NIC was made when memory was registered, to read back.
  host.FailRequest("mlx5_0", host.queue_pairs("mlx5_0").front(), 0);
  const absl::Status status = cluster_->StartAndArrive();
  EXPECT_TRUE(absl::StrContains(status.message(), "read back what mlx5_0 has written")) << status;
  const std::vector<ReceiverEvent>& events = cluster_->worker_events(0);
  for (int i = 0; i < 1000 && events.back().kind != ReceiverEvent::Kind::kLacking; ++i) {
    cluster_->Step();
  }
  EXPECT_EQ(events.back().lacking.size(), 1u);
  cluster_->Abort(/*begun=*/true);
  ASSERT_TRUE(cluster_->UntilStopped());
  ASSERT_EQ(cluster_->Connect().message(), "");
  ASSERT_EQ(PublishAndCheck(3), "");
}

// The worker looks only when the trainer is gone.
TEST_P(ReadBackTest, WhatATrainerHasSentBeforeItDiesIsShown) {
  Make(InPlace({.trainers = 1, .workers = 1, .digests = GetParam()}));
  ASSERT_EQ(PublishAndCheck(1), "");
  cluster_->FillTrainers(2);
  ASSERT_TRUE(cluster_->Prepare(2).ok());
  ASSERT_EQ(cluster_->Start(0).message(), "");
  const std::vector<SenderEvent>& events = cluster_->trainer_events(0);
  for (int i = 0; i < 1000 && events.empty(); ++i) cluster_->StepTrainers();
  ASSERT_EQ(events.size(), 1u);
  ASSERT_EQ(events[0].kind, SenderEvent::Kind::kSent);
  cluster_->KillTrainer(0);
  for (int i = 0; i < 100; ++i) cluster_->Step();
  const std::vector<ReceiverEvent>& heard = cluster_->worker_events(0);
  EXPECT_EQ(absl::c_count_if(heard,
                             [](const ReceiverEvent& event) {
                               return event.kind == ReceiverEvent::Kind::kArrived ||
                                      event.kind == ReceiverEvent::Kind::kPeerFailed;
                             }),
            2);
  cluster_->worker(0).Commit(cluster_->update());
  for (int i = 0; i < 100; ++i) cluster_->Step();
  EXPECT_TRUE(cluster_->Shows(0, 2));
}

TEST_F(LocalDirectTest, AGpuNeedsToSayNothingWhereNoNicWrites) {
  SayOfGpu(kFakeCudaReadBack, /*exports_dmabuf=*/false);
  Make(InPlace());
  for (uint64_t version = 1; version <= 3; ++version) ASSERT_EQ(PublishAndCheck(version), "");
}

TEST_F(DirectTest, BothReasonsAreToldWhereNeitherWayToTheMemoryIsOpen) {
  SayOfGpu(kFakeCudaOrders, /*exports_dmabuf=*/false);
  network_.Host("a").AddDevice("mlx5_0");
  const auto fabric = *MakeVerbsFabric({.library = &network_.Host("a")});
  const absl::Status status = WhyNoWorker(fabric.get());
  EXPECT_TRUE(absl::StrContains(status.message(), "as a dma-buf: its driver does not")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "Bad address (errno 14)")) << status;
}

// A worker can still verify what came by an earlier plan, but keeps no GPU memory of that plan.
TEST_P(DirectNetworkTest, AnotherPlanTakesNoMoreOfTheGpu) {
  SayOfGpu(kFakeCudaOrders);
  Make(InPlace());
  ASSERT_EQ(PublishAndCheck(1), "");
  const FakeCudaUse before = FakeCudaNow();
  ASSERT_EQ(cluster_->Connect().message(), "");
  EXPECT_EQ(FakeCudaNow().allocations, before.allocations);
  EXPECT_EQ(FakeCudaNow().streams, before.streams);
  EXPECT_EQ(*cluster_->worker(0).Verify(), 1u);
  ASSERT_EQ(PublishAndCheck(2), "");
}

TEST_P(DirectNetworkTest, NothingOfItIsLeftWhenTheRanksAreGone) {
  SayOfGpu(kFakeCudaOrders);
  Make(InPlace());
  ASSERT_EQ(cluster_->Connect().message(), "");  // Another plan: the first one's is freed.
  ASSERT_EQ(PublishAndCheck(1), "");
  cluster_.reset();
  EXPECT_EQ(FakeCudaNow().allocations, 0u);
  EXPECT_EQ(FakeCudaNow().streams, 0u);
}

}  // namespace
}  // namespace waybill
