// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/regions.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/random_bits.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"

namespace waybill::verbs {
namespace {

// The kernel's ENOTSUPP, which has no name outside of it.
constexpr int kTopologyError = 524;

constexpr uint64_t kWorthAThread = 1 << 20;

std::string Errno(int error) { return absl::StrCat(std::strerror(error), " (errno ", error, ")"); }

}  // namespace

absl::Status Regions::ErrorOf(const OwnRegion& region, const Device& device,
                              const Refusal& refusal) {
  const std::string what =
      absl::StrCat("register \"", region.name, "\" (", region.memory.size_bytes, " bytes) with ",
                   device.name(), ": ", Errno(refusal.by_address));
  if (region.memory.kind == MemoryKind::kDevice && refusal.by_address != ENOMEM) {
    return absl::FailedPreconditionError(absl::StrCat(
        what,
        refusal.by_dmabuf == 0
            ? std::string("; registering a GPU's memory needs a dma-buf of it, or the "
                          "nvidia-peermem module")
            : absl::StrCat(", and as a dma-buf: ",
                           refusal.by_dmabuf == kTopologyError
                               ? "the GPU's driver refuses this pair of GPU and NIC (errno 524)"
                               : Errno(refusal.by_dmabuf),
                           "; `waybill doctor` says what is between the two")));
  }
  if (refusal.by_address == ENOMEM) {
    return absl::ResourceExhaustedError(absl::StrCat(
        what,
        "; the limit on locked memory (ulimit -l) or the device's translation table is full"));
  }
  return absl::InternalError(what);
}

Regions::~Regions() {
  for (auto& [id, region] : regions_) (void)Deregister(region);
}

absl::StatusOr<Region> Regions::Register(const MemorySpan& memory, absl::string_view name) {
  return Add({.memory = memory, .name = std::string(name)});
}

absl::StatusOr<Region> Regions::RegisterSource(const MemorySpan& memory, absl::string_view name) {
  return Add({.memory = memory, .name = std::string(name), .is_source = true});
}

absl::StatusOr<Region> Regions::Allocate(uint64_t size_bytes, absl::string_view name) {
  WAYBILL_ASSIGN_OR_RETURN(SharedPages pages, SharedPages::Create(size_bytes, name));
  const MemorySpan memory{MemoryKind::kHost, pages.data(), size_bytes};
  return Add({.memory = memory, .name = std::string(name), .pages = std::move(pages)});
}

absl::StatusOr<Region> Regions::Add(OwnRegion region) {
  WAYBILL_ASSIGN_OR_RETURN(region.key, RandomBits());
  region.id = RegionId{++last_id_};
  WAYBILL_RETURN_IF_ERROR(RegisterWithDevices(region));
  const Region added{region.id, region.memory};
  regions_.emplace(added.id, std::move(region));
  return added;
}

absl::Status Regions::Release(RegionId id) {
  WAYBILL_ASSIGN_OR_RETURN(OwnRegion * region, Find(id));
  RetireKeys(*region);
  WAYBILL_RETURN_IF_ERROR(Deregister(*region));
  regions_.erase(id);
  return absl::OkStatus();
}

absl::Status Regions::Renew(RegionId id, Contents contents) {
  WAYBILL_ASSIGN_OR_RETURN(OwnRegion * region, Find(id));
  if (contents == Contents::kZeroed && region->memory.kind == MemoryKind::kDevice) {
    return absl::UnimplementedError(absl::StrCat(
        "renew \"", region->name, "\" zeroed: memory of a device is zeroed by its owner"));
  }
  RetireKeys(*region);
  WAYBILL_RETURN_IF_ERROR(Deregister(*region));
  WAYBILL_ASSIGN_OR_RETURN(region->key, RandomBits());
  if (contents == Contents::kZeroed) {
    std::memset(region->memory.data, 0, region->memory.size_bytes);
  }
  return RegisterWithDevices(*region);
}

absl::StatusOr<OwnRegion*> Regions::Find(RegionId id) {
  const auto region = regions_.find(id);
  if (region == regions_.end()) {
    return absl::NotFoundError(absl::StrCat("no region ", static_cast<uint32_t>(id)));
  }
  return &region->second;
}

absl::StatusOr<OwnRegion*> Regions::FindUsable(RegionId id) {
  WAYBILL_ASSIGN_OR_RETURN(OwnRegion * region, Find(id));
  if (region->registrations.empty() && !region->bounced) {
    return absl::FailedPreconditionError(absl::StrCat(
        "\"", region->name, "\" is registered with no device: it could not be renewed"));
  }
  return region;
}

void Regions::ForgetLane(LaneId lane) {
  for (auto& [id, region] : regions_) region.grants.erase(lane);
  // Its queue pair is gone, and so is everything that was under way on it.
  for (auto& keys : retired_keys_) {
    absl::erase_if(keys, [lane](auto& entry) {
      entry.second.lanes.erase(lane);
      return entry.second.lanes.empty();
    });
  }
}

void Regions::RetireKeys(OwnRegion& region) {
  const std::set<LaneId> lanes = std::exchange(region.grants, {});
  if (lanes.empty()) return;
  const auto begin = reinterpret_cast<uintptr_t>(region.memory.data);
  const uint64_t end = begin + region.memory.size_bytes;
  for (size_t i = 0; i < region.registrations.size(); ++i) {
    if (region.registrations[i] == nullptr) continue;
    RetiredKey& key = retired_keys_[i]
                          .try_emplace(region.registrations[i]->rkey, RetiredKey{begin, end})
                          .first->second;
    key.begin = std::min<uint64_t>(key.begin, begin);
    key.end = std::max(key.end, end);
    key.lanes.insert(lanes.begin(), lanes.end());
  }
}

std::array<std::optional<Regions::Byte>, 2> Regions::ToReadBack(size_t device) const {
  std::array<std::optional<Byte>, 2> bytes;
  for (const auto& [id, region] : regions_) {
    if (!region.memory.needs_read_back || region.registrations.empty()) continue;
    const ibv_mr* const mr = region.registrations[device];
    if (mr == nullptr) continue;
    std::optional<Byte>& byte = bytes[region.by_dmabuf[device] ? 0 : 1];
    if (!byte) byte = {reinterpret_cast<uintptr_t>(region.memory.data), mr->rkey};
  }
  return bytes;
}

ibv_mr* Regions::RegisterWith(const OwnRegion& region, Attempt& attempt) const {
  const Device& device = *attempt.device;
  Refusal& refusal = attempt.refusal;
  refusal = {};
  // A source may be memory that this process cannot write either, such as a mapped checkpoint.
  unsigned access = region.is_source ? 0 : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  // Peers cannot read it: the queue pairs of lanes do not allow that.
  if (region.memory.needs_read_back) access |= IBV_ACCESS_REMOTE_READ;
  // Writes to a GPU's memory may pass each other: without it, some platforms reach less than half
  // of the wire rate. An optional flag: the library leaves it out where the device does not know
  // it.
  if (region.memory.kind == MemoryKind::kDevice) access |= IBV_ACCESS_RELAXED_ORDERING;
  if (region.memory.dmabuf_fd >= 0) {
    ibv_mr* const mr =
        verbs_.RegDmabufMr(device.pd(), region.memory.dmabuf_offset_bytes, region.memory.size_bytes,
                           reinterpret_cast<uintptr_t>(region.memory.data), region.memory.dmabuf_fd,
                           static_cast<int>(access));
    if (mr != nullptr) {
      attempt.path = "by dma-bufs";
      return mr;
    }
    refusal.by_dmabuf = errno;
  }
  // Host memory, or a GPU's by peer memory where there is no dma-buf.
  ibv_mr* const mr =
      verbs_.RegMr(device.pd(), region.memory.data, region.memory.size_bytes, access);
  if (mr == nullptr) {
    refusal.by_address = errno;
  } else if (region.memory.kind == MemoryKind::kDevice) {
    attempt.path =
        absl::StrCat("by the module for peer memory, because ",
                     refusal.by_dmabuf == 0
                         ? std::string("its driver exports no dma-buf")
                         : absl::StrCat(device.name(),
                                        " does not take its dma-buf: ", Errno(refusal.by_dmabuf)));
  }
  return mr;
}

// A NIC gives keys of earlier registrations back, mlx5 the last one first, and a late write by such
// a key would land. While a registration lives, the next one has another key.
void Regions::RegisterUnderNewKey(size_t device, const OwnRegion& region, Attempt& attempt) const {
  attempt.device = devices_[device];
  const auto begin = reinterpret_cast<uintptr_t>(region.memory.data);
  while (ibv_mr* const mr = RegisterWith(region, attempt)) {
    const auto retired = retired_keys_[device].find(mr->rkey);
    const bool opened_it = retired != retired_keys_[device].end() &&
                           retired->second.begin < begin + region.memory.size_bytes &&
                           begin < retired->second.end;
    if (!opened_it) {
      attempt.mr = mr;
      return;
    }
    attempt.held.push_back(mr);
  }
}

std::vector<Regions::Attempt> Regions::TryDevices(const OwnRegion& region) {
  std::vector<Attempt> attempts(devices_.size());
  const auto attempt = [&](size_t device) {
    RegisterUnderNewKey(device, region, attempts[device]);
  };
  std::vector<std::thread> threads;
  std::optional<size_t> own;  // The device of this thread.
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i]->failed()) continue;  // Its lanes are dead; the others go on.
    // A NIC takes about 0.1 s for a GB, and others go on meanwhile.
    if (!own) {
      own = i;
    } else if (region.memory.size_bytes >= kWorthAThread) {
      threads.emplace_back(attempt, i);
    } else {
      attempt(i);
    }
  }
  if (own) attempt(*own);
  for (std::thread& thread : threads) thread.join();
  return attempts;
}

absl::Status Regions::RegisterWithDevices(OwnRegion& region) {
  const absl::Time begin = SteadyNow();
  region.by_dmabuf.clear();
  const std::vector<Attempt> attempts = TryDevices(region);
  absl::Status given_up;
  const Attempt* refused = nullptr;
  for (const Attempt& attempt : attempts) {
    region.registrations.push_back(attempt.mr);
    region.by_dmabuf.push_back(attempt.mr != nullptr && region.memory.dmabuf_fd >= 0 &&
                               attempt.refusal.by_dmabuf == 0);
    if (attempt.mr != nullptr) {
      ++counts_.registrations;
      counts_.registered_bytes += region.memory.size_bytes;
    } else if (refused == nullptr && attempt.device != nullptr) {
      refused = &attempt;
    }
    if (!attempt.path.empty()) device_path_ = attempt.path;
    for (ibv_mr* old : attempt.held) {
      given_up = FirstError(std::move(given_up), DeregisterOne(region, old));
    }
  }
  counts_.time += SteadyNow() - begin;
  if (refused == nullptr && given_up.ok()) return absl::OkStatus();
  (void)Deregister(region);
  if (!given_up.ok()) return given_up;
  absl::Status status = ErrorOf(region, *refused->device, refused->refusal);
  const bool may_bounce = refused->refusal.by_address == ENOMEM &&
                          region.memory.kind != MemoryKind::kDevice && !region.is_source;
  return may_bounce ? Bounce(region, status) : status;
}

absl::Status Regions::Bounce(OwnRegion& region, const absl::Status& why) {
  for (const Device* device : devices_) {
    if (device->failed()) continue;
    const auto trial = BounceRing::Create(&verbs_, *device, bounce_limits_);
    if (!trial.ok()) {
      return absl::ResourceExhaustedError(
          absl::StrCat(why.message(), ", and so: ", trial.status().message()));
    }
  }
  region.bounced = true;
  bounced_[region.key] = region.id;
  if (counts_.unregistered_regions++ == 0) why_bounced_ = std::string(why.message());
  return absl::OkStatus();
}

absl::Status Regions::Deliver(LaneId lane, const BouncedHeader& header, const std::byte* data) {
  const auto id = bounced_.find(header.key);
  const OwnRegion* region = id == bounced_.end() ? nullptr : &regions_.at(id->second);
  if (region == nullptr || !region->grants.contains(lane)) {
    return absl::PermissionDeniedError(
        "write by a key that is not granted on its lane, or was renewed since");
  }
  const uint64_t size = region->memory.size_bytes;
  if (header.offset_bytes > size || header.size_bytes > size - header.offset_bytes) {
    return absl::OutOfRangeError(absl::StrCat("write of ", header.size_bytes, " bytes to offset ",
                                              header.offset_bytes, " of \"", region->name,
                                              "\", which has ", size));
  }
  std::memcpy(region->memory.data + header.offset_bytes, data, header.size_bytes);
  counts_.delivered_bytes += header.size_bytes;
  return absl::OkStatus();
}

absl::string_view Regions::why_bounced() const {
  return counts_.unregistered_regions == 0 ? absl::string_view() : absl::string_view(why_bounced_);
}

absl::Status Regions::DeregisterOne(OwnRegion& region, ibv_mr* mr) {
  const Device& device = **std::find_if(devices_.begin(), devices_.end(),
                                        [&](const Device* d) { return d->pd() == mr->pd; });
  const int error = verbs_.DeregMr(mr);
  // A device that has failed accepts nothing any more.
  if (error == 0 || device.failed()) return absl::OkStatus();
  region.stuck.push_back(mr);
  return absl::InternalError(absl::StrCat("deregister \"", region.name, "\" (",
                                          region.memory.size_bytes, " bytes) with ", device.name(),
                                          ": ", std::strerror(error), " (errno ", error,
                                          "): peers can still write to it by its old key"));
}

absl::Status Regions::Deregister(OwnRegion& region) {
  if (std::exchange(region.bounced, false)) {
    bounced_.erase(region.key);
    --counts_.unregistered_regions;
  }
  absl::Status status;
  for (ibv_mr* mr : std::exchange(region.stuck, {})) {
    status = FirstError(std::move(status), DeregisterOne(region, mr));
  }
  for (ibv_mr* mr : std::exchange(region.registrations, {})) {
    if (mr == nullptr) continue;
    status = FirstError(std::move(status), DeregisterOne(region, mr));
    counts_.registered_bytes -= region.memory.size_bytes;
  }
  return status;
}

std::vector<FabricCount> Regions::Counts() const {
  return {{"registrations", counts_.registrations},
          {"registered_bytes", counts_.registered_bytes},
          {"unregistered_regions", counts_.unregistered_regions},
          {"delivered_bytes", counts_.delivered_bytes},
          {"registration_us", static_cast<uint64_t>(absl::ToInt64Microseconds(counts_.time))}};
}

}  // namespace waybill::verbs
