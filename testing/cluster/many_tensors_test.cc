// SPDX-License-Identifier: Apache-2.0

// What it costs to reach very many tensors of an inference engine in place.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/engine/receiver_memory.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/fabric_conformance/endpoints.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill {
namespace {

uint64_t CountOf(const Fabric& fabric, absl::string_view name) {
  for (const FabricCount& count : fabric.Counts()) {
    if (count.name == name) return count.value;
  }
  return ~uint64_t{0};
}

TEST(ManyTensors, OfFewAllocationsAreGrantedInFewFrames) {
  constexpr uint32_t kTensors = 150'000;
  constexpr int kLanes = 64;
  constexpr uint64_t kBytes = 8;
  std::vector<std::byte> allocations[3];
  for (auto& allocation : allocations) allocation.resize(kTensors / 3 * kBytes);
  Manifest manifest;
  std::vector<MemorySpan> tensors;
  for (uint32_t i = 0; i < kTensors; ++i) {
    manifest.AddRegion(absl::StrCat("tensor ", i), kBytes);
    // Neighbours have no neighbouring numbers.
    tensors.push_back({MemoryKind::kHost, allocations[i % 3].data() + i / 3 * kBytes, kBytes});
  }

  fake_verbs::FakeNetwork network;
  for (const char* name : {"trainer", "worker"}) network.Host(name).AddDevice("mlx5_0");
  testing_fabric::Endpoints endpoints(
      [&](const std::string& name) { return *MakeVerbsFabric({.library = &network.Host(name)}); });
  auto& trainer = endpoints.Join("trainer");
  auto& worker = endpoints.Join("worker");
  std::vector<testing_fabric::Lane> lanes;
  for (int i = 0; i < kLanes; ++i) lanes.push_back(endpoints.Connect(worker, trainer));

  auto memory = ReceiverMemory::Create(&worker.fabric(), &manifest, Mode::kInPlace, tensors, {});
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_TRUE((*memory)->AllocateLedgers(1).ok());
  EXPECT_LE(CountOf(worker.fabric(), "registrations"), 4u);
  for (const auto& lane : lanes) ASSERT_TRUE((*memory)->Grant(lane.at_a, 0).ok());
  const BufferAddress address = *(*memory)->Describe(0);
  endpoints.UntilQuiet();
  EXPECT_LE(CountOf(worker.fabric(), "grant_frames"), uint64_t{kLanes} * 16);
  for (const auto& lane : lanes) {
    EXPECT_TRUE(trainer.fabric().Import(lane.at_b, address.regions[kTensors - 1].descriptor).ok());
  }
  EXPECT_EQ(address.regions[5].offset_bytes, kBytes);
}

}  // namespace
}  // namespace waybill
