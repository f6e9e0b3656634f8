// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/regions.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <latch>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "core/base/unique_fd.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill::verbs {
namespace {

using fake_verbs::FakeHost;
using fake_verbs::FakeNetwork;
using fake_verbs::RegistrationKind;

constexpr BounceLimits kBounce = {.slots = 4, .slot_bytes = 1000};

class RegionsTest : public testing::Test {
 protected:
  void Make(const fake_verbs::DeviceOptions& options = {}) {
    for (const char* name : {"mlx5_0", "mlx5_1"}) host.AddDevice(name, options);
    ibv_device** list = host.GetDeviceList(nullptr);
    for (int i = 0; i < 2; ++i) opened.push_back(*Device::Open(&host, list[i]));
    host.FreeDeviceList(list);
    regions.emplace(&host, std::vector<Device*>{opened[0].get(), opened[1].get()}, kBounce);
  }
  MemorySpan OfDevice() { return {MemoryKind::kDevice, memory.data(), memory.size()}; }
  // Whose dma-buf has so many bytes.
  MemorySpan Exported(uint64_t size_bytes = 3 << 12) {
    dmabuf = UniqueFd(memfd_create("a GPU's", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(dmabuf.get(), static_cast<off_t>(size_bytes)), 0);
    MemorySpan span = OfDevice();
    span.dmabuf_fd = dmabuf.get();
    span.dmabuf_offset_bytes = reinterpret_cast<uintptr_t>(memory.data()) % 4096;
    return span;
  }
  MemorySpan OfHost() { return {MemoryKind::kHost, memory.data(), memory.size()}; }
  size_t Alive(const char* device) { return host.counts(device).registrations; }
  unsigned NewestAccess() { return host.newest_registration("mlx5_1")->access; }

  FakeNetwork network;
  FakeHost& host = network.Host("a");
  std::vector<std::byte> memory = std::vector<std::byte>(5000);
  UniqueFd dmabuf;
  std::vector<std::unique_ptr<Device>> opened;
  std::optional<Regions> regions;
};

TEST_F(RegionsTest, ARegionIsRegisteredOnceWithEachDeviceAndDeregisteredInTheEnd) {
  Make();
  const Region allocated = *regions->Allocate(8192, "allocated");
  ASSERT_TRUE(regions->Register(OfHost(), "registered").ok());
  EXPECT_EQ(Alive("mlx5_0"), 2u);
  EXPECT_EQ(Alive("mlx5_1"), 2u);
  EXPECT_EQ(regions->counts().registrations, 4u);
  EXPECT_EQ(regions->counts().registered_bytes, 2 * (8192u + 5000));
  ASSERT_TRUE(regions->Release(allocated.id).ok());
  EXPECT_EQ(Alive("mlx5_0"), 1u);
  EXPECT_EQ(regions->counts().registered_bytes, 2 * 5000u);
  regions.reset();
  EXPECT_EQ(Alive("mlx5_0"), 0u);
  EXPECT_EQ(Alive("mlx5_1"), 0u);
}

TEST_F(RegionsTest, OnlyWritesToADevicesMemoryMayPassEachOther) {
  Make();
  ASSERT_TRUE(regions->Register(OfHost(), "host").ok());
  EXPECT_EQ(NewestAccess(), unsigned{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE});
  ASSERT_TRUE(regions->Register(OfDevice(), "device").ok());
  EXPECT_EQ(NewestAccess(), unsigned{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                     IBV_ACCESS_RELAXED_ORDERING});
}

TEST_F(RegionsTest, OnlyMemoryThatHasToBeReadBackCanBeRead) {
  Make();
  MemorySpan span = OfDevice();
  span.needs_read_back = true;
  ASSERT_TRUE(regions->Register(span, "device").ok());
  EXPECT_EQ(NewestAccess(), unsigned{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING});
}

TEST_F(RegionsTest, ADmabufIsTriedFirst) {
  Make();
  ASSERT_TRUE(regions->Register(Exported(), "device").ok());
  EXPECT_EQ(host.newest_registration("mlx5_0")->kind, RegistrationKind::kDmabuf);
  EXPECT_EQ(host.newest_registration("mlx5_0")->begin, reinterpret_cast<uintptr_t>(memory.data()));
  ASSERT_TRUE(regions->Register(OfHost(), "host").ok());
  EXPECT_EQ(host.newest_registration("mlx5_0")->kind, RegistrationKind::kPlain);
}

TEST_F(RegionsTest, WithoutDmabufsADevicesMemoryIsRegisteredAsAnyOther) {
  Make({.dmabuf = false});
  ASSERT_TRUE(regions->Register(Exported(), "device").ok());
  EXPECT_EQ(host.newest_registration("mlx5_0")->kind, RegistrationKind::kPlain);
}

TEST_F(RegionsTest, WhereADevicesMemoryCannotBeRegisteredItIsSaidWhatIsMissing) {
  Make({.dmabuf = false});
  host.FailRegistrations("mlx5_1", {.error = EFAULT});
  const absl::Status status = regions->Register(OfDevice(), "gpu memory").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "register \"gpu memory\" (5000 bytes) with mlx5_1: Bad address (errno 14); registering "
            "a GPU's memory needs a dma-buf of it, or the nvidia-peermem module");
  EXPECT_EQ(Alive("mlx5_0"), 0u);
}

struct RefusedDmabuf {
  const char* name;
  int error;  // 0: the dma-buf is too short.
  const char* told;
};

class RefusedDmabufTest : public RegionsTest, public testing::WithParamInterface<RefusedDmabuf> {};

// The second errno alone would hide why the better way was not taken.
TEST_P(RefusedDmabufTest, IsToldBesideWhyTheOtherWayIsClosed) {
  Make();
  host.FailRegistrations("mlx5_0", {.error = EFAULT, .kind = RegistrationKind::kPlain});
  const MemorySpan memory = Exported(GetParam().error == 0 ? 4096 : 3 << 12);
  if (GetParam().error != 0) {
    host.FailRegistrations("mlx5_0", {.error = GetParam().error});
  }
  const absl::Status status = regions->Register(memory, "gpu memory").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), GetParam().told)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "waybill doctor")) << status;
  EXPECT_EQ(Alive("mlx5_0"), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedDmabufTest,
    testing::Values(RefusedDmabuf{"by_topology", 524,
                                  "refuses this pair of GPU and NIC (errno 524)"},
                    RefusedDmabuf{"as_too_short", 0, "as a dma-buf: Invalid argument (errno 22)"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(RegionsTest, ASourceIsReadByTheDeviceOnlyAndIsNeverBounced) {
  Make();
  const auto source = regions->RegisterSource(OfHost(), "tensors");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(NewestAccess(), 0u);
  ASSERT_TRUE(regions->Release(source->id).ok());
  host.FailRegistrations("mlx5_1", {.spared_bytes = kBounce.ring_bytes()});
  EXPECT_EQ(regions->RegisterSource(OfHost(), "tensors").status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(regions->counts().unregistered_regions, 0u);
  EXPECT_EQ(Alive("mlx5_0"), 0u);
}

TEST_F(RegionsTest, WhereNotEvenARingHasRoomTheLimitThatIsBehindItIsTold) {
  Make();
  host.FailRegistrations("mlx5_1", {.above_bytes = 4999});
  const absl::Status status = regions->Register(OfHost(), "weights").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "register \"weights\" (5000 bytes) with mlx5_1: Cannot allocate memory (errno 12); the "
            "limit on locked memory (ulimit -l) or the device's translation table is full, and so: "
            "register a bounce ring (8512 bytes) with mlx5_1: Cannot allocate memory (errno 12)");
  // Nothing is left of it, and what fits is still registered.
  EXPECT_EQ(Alive("mlx5_0"), 0u);
  EXPECT_EQ(regions->counts().registered_bytes, 0u);
  EXPECT_EQ(regions->counts().unregistered_regions, 0u);
  EXPECT_TRUE(regions->Allocate(4096, "small").ok());
}

TEST_F(RegionsTest, WhatHasNoRoomOnOneDeviceIsBouncedOnAll) {
  Make();
  host.FailRegistrations("mlx5_1", {.spared_bytes = kBounce.ring_bytes()});
  const Region region = *regions->Register(OfHost(), "weights");
  EXPECT_EQ(Alive("mlx5_0"), 0u);
  EXPECT_EQ(Alive("mlx5_1"), 0u);
  OwnRegion& own = **regions->FindUsable(region.id);
  EXPECT_TRUE(own.bounced);
  EXPECT_EQ(regions->counts().registered_bytes, 0u);
  EXPECT_EQ(regions->counts().unregistered_regions, 1u);
  EXPECT_TRUE(absl::StartsWith(regions->why_bounced(), "register \"weights\" (5000 bytes) with "));
  ASSERT_TRUE(regions->Release(region.id).ok());
  EXPECT_EQ(regions->counts().unregistered_regions, 0u);
  EXPECT_EQ(regions->why_bounced(), "");
}

TEST_F(RegionsTest, WhatIsBouncedIsRegisteredWhenItIsRenewedAndThereIsRoom) {
  Make();
  host.FailRegistrations("mlx5_1", {.spared_bytes = kBounce.ring_bytes(), .count = 1});
  const Region region = *regions->Register(OfHost(), "weights");
  ASSERT_TRUE((*regions->FindUsable(region.id))->bounced);
  ASSERT_TRUE(regions->Renew(region.id, Contents::kKept).ok());
  EXPECT_FALSE((*regions->FindUsable(region.id))->bounced);
  EXPECT_EQ(regions->counts().unregistered_regions, 0u);
  EXPECT_EQ(Alive("mlx5_1"), 1u);
}

TEST_F(RegionsTest, ADevicesMemoryIsNotBounced) {
  Make();
  host.FailRegistrations("mlx5_1", {.spared_bytes = kBounce.ring_bytes()});
  EXPECT_EQ(regions->Register(OfDevice(), "gpu memory").status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(RegionsTest, APieceIsDeliveredOnlyByAKeyThatIsGrantedAndWithinItsRegion) {
  Make();
  host.FailRegistrations("mlx5_1", {.spared_bytes = kBounce.ring_bytes(), .count = 1});
  const Region region = *regions->Register(OfHost(), "weights");
  const Region registered = *regions->Allocate(4096, "registered");
  OwnRegion& own = **regions->FindUsable(region.id);
  const std::vector<std::byte> data(10, std::byte{9});
  const auto deliver = [&](uint32_t lane, uint64_t key, uint64_t offset, uint64_t size) {
    return regions->Deliver(LaneId{lane}, {key, offset, size}, data.data()).code();
  };
  constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
  constexpr auto kOutOfRange = absl::StatusCode::kOutOfRange;
  own.grants.insert(LaneId{1});
  (*regions->FindUsable(registered.id))->grants.insert(LaneId{1});
  EXPECT_EQ(deliver(2, own.key, 0, 10), kDenied);
  EXPECT_EQ(deliver(1, own.key + 1, 0, 10), kDenied);
  EXPECT_EQ(deliver(1, (*regions->FindUsable(registered.id))->key, 0, 10), kDenied);
  EXPECT_EQ(deliver(1, own.key, 4991, 10), kOutOfRange);
  EXPECT_EQ(deliver(1, own.key, 5001, 0), kOutOfRange);
  EXPECT_EQ(deliver(1, own.key, ~uint64_t{0}, 10), kOutOfRange);
  EXPECT_EQ(memory, std::vector<std::byte>(5000));
  EXPECT_EQ(deliver(1, own.key, 4990, 10), absl::StatusCode::kOk);
  EXPECT_EQ(memory[4989], std::byte{0});
  EXPECT_EQ(memory[4999], std::byte{9});
  const uint64_t before = own.key;
  ASSERT_TRUE(regions->Renew(region.id, Contents::kKept).ok());
  EXPECT_EQ(deliver(1, before, 0, 10), kDenied);
}

TEST_F(RegionsTest, ARenewedRegionHasOtherKeysAndTheSameMemory) {
  Make();
  const Region region = *regions->Allocate(4096, "memory");
  region.memory.data[7] = std::byte{7};
  OwnRegion& own = **regions->Find(region.id);
  own.grants.insert(LaneId{1});
  const uint64_t key = own.key;
  const uint32_t remote_key = own.registrations[0]->rkey;
  ASSERT_TRUE(regions->Renew(region.id, Contents::kKept).ok());
  EXPECT_NE(own.key, key);
  EXPECT_NE(own.registrations[0]->rkey, remote_key);
  EXPECT_TRUE(own.grants.empty());
  EXPECT_EQ(own.memory.data, region.memory.data);
  EXPECT_EQ(region.memory.data[7], std::byte{7});
  ASSERT_TRUE(regions->Renew(region.id, Contents::kZeroed).ok());
  EXPECT_EQ(region.memory.data[7], std::byte{0});
  EXPECT_EQ(Alive("mlx5_0"), 1u);
}

TEST_F(RegionsTest, AKeyThatALaneWasGrantedIsNeverOfTheSameMemoryAgain) {
  Make();
  const Region region = *regions->Allocate(4096, "memory");
  OwnRegion& own = **regions->Find(region.id);
  std::set<uint32_t> keys[2];
  for (int renewals = 0; renewals < 5; ++renewals) {
    for (size_t device : {0, 1}) {
      EXPECT_TRUE(keys[device].insert(own.registrations[device]->rkey).second);
    }
    own.grants.insert(LaneId{1});
    ASSERT_TRUE(regions->Renew(region.id, Contents::kKept).ok());
  }
  EXPECT_EQ(Alive("mlx5_0"), 1u);
  EXPECT_EQ(regions->counts().registered_bytes, 2 * 4096u);
}

TEST_F(RegionsTest, ALongRegionIsRegisteredWithAllDevicesAtOnce) {
  std::latch both(2);
  Make({.during_registration = [&] { both.arrive_and_wait(); }});
  EXPECT_TRUE(regions->Allocate(1 << 20, "long").ok());
  EXPECT_EQ(Alive("mlx5_0") + Alive("mlx5_1"), 2u);
}

TEST_F(RegionsTest, AGrantedKeyIsRememberedThoughItsRegionWasReleased) {
  Make();
  RegionId region = regions->Register(OfHost(), "first")->id;
  std::set<uint32_t> keys;
  for (int rounds = 0; rounds < 3; ++rounds) {
    OwnRegion& own = **regions->Find(region);
    EXPECT_TRUE(keys.insert(own.registrations[0]->rkey).second);
    own.grants.insert(LaneId{1});
    ASSERT_TRUE(regions->Release(region).ok());
    region = regions->Register(OfHost(), "again")->id;
  }
}

TEST_F(RegionsTest, AKeyMayComeBackForOtherMemoryOrWhenTheLanesWithItsGrantsAreClosed) {
  Make();
  const Region region = *regions->Allocate(4096, "memory");
  OwnRegion& own = **regions->Find(region.id);
  const uint32_t first = own.registrations[0]->rkey;
  own.grants.insert(LaneId{1});
  ASSERT_TRUE(regions->Renew(region.id, Contents::kKept).ok());
  EXPECT_NE(own.registrations[0]->rkey, first);
  const Region other = *regions->Allocate(4096, "other memory");
  EXPECT_EQ((*regions->Find(other.id))->registrations[0]->rkey, first);
  ASSERT_TRUE(regions->Release(other.id).ok());
  regions->ForgetLane(LaneId{1});
  const Region beside = *regions->Allocate(4096, "more memory");
  ASSERT_TRUE(regions->Release(region.id).ok());
  ASSERT_TRUE(regions->Release(beside.id).ok());
  EXPECT_EQ((*regions->Find(regions->Allocate(4096, "again")->id))->registrations[0]->rkey, first);
}

TEST_F(RegionsTest, ARegionWhoseOldKeysStayIsUsableByNobody) {
  Make();
  const Region region = *regions->Allocate(4096, "memory");
  host.FailDeregistrations("mlx5_1", 1);
  const absl::Status status = regions->Renew(region.id, Contents::kKept);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(),
            "deregister \"memory\" (4096 bytes) with mlx5_1: Device or resource busy (errno 16): "
            "peers can still write to it by its old key");
  EXPECT_FALSE(regions->FindUsable(region.id).ok());
  ASSERT_TRUE(regions->Renew(region.id, Contents::kKept).ok());
  EXPECT_TRUE(regions->FindUsable(region.id).ok());
  EXPECT_EQ(Alive("mlx5_1"), 1u);
  host.FailDeregistrations("mlx5_0", 1);
  EXPECT_EQ(regions->Release(region.id).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(regions->Find(region.id).ok());  // Its pages are not free yet.
  EXPECT_TRUE(regions->Release(region.id).ok());
  EXPECT_EQ(Alive("mlx5_0"), 0u);
}

TEST_F(RegionsTest, ARegionThatCouldNotBeRenewedIsUsableByNobodyUntilItIs) {
  Make();
  const Region region = *regions->Allocate(4096, "memory");
  host.FailRegistrations("mlx5_1", {.error = EFAULT, .count = 1});
  EXPECT_EQ(regions->Renew(region.id, Contents::kKept).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Alive("mlx5_0"), 0u);
  const absl::Status status = regions->FindUsable(region.id).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "\"memory\" is registered with no device: it could not be renewed");
  ASSERT_TRUE(regions->Renew(region.id, Contents::kKept).ok());
  EXPECT_TRUE(regions->FindUsable(region.id).ok());
  EXPECT_EQ(Alive("mlx5_1"), 1u);
}

}  // namespace
}  // namespace waybill::verbs
