// SPDX-License-Identifier: Apache-2.0

#include "core/engine/device_targets.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace waybill {

absl::StatusOr<RegionId> DeviceTargets::Add(const MemorySpan& memory, std::string name) {
  Target target = {.name = std::move(name), .memory = memory};
  WAYBILL_RETURN_IF_ERROR(Register(target));
  targets_.push_back(std::move(target));
  return targets_.back().region;
}

// Does not use a registration cache: pages that have moved need a registration of their own.
absl::Status DeviceTargets::Register(Target& target) {
  WAYBILL_ASSIGN_OR_RETURN(const uint64_t pages, device_->PagesOf(target.memory));
  ExportedMemory exported = device_->Export(target.memory);
  exported.span.needs_read_back = device_->inbound_writes() == InboundWrites::kReadBack;
  const absl::StatusOr<Region> made = fabric_.Register(exported.span, target.name);
  if (!made.ok()) return exported.Refused(made.status());
  target.region = made->id;
  target.pages = pages;
  target.dmabuf = std::move(exported.dmabuf);
  target.registered = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> DeviceTargets::HaveMoved() const {
  bool moved = false;
  for (const Target& target : targets_) {
    const absl::StatusOr<uint64_t> now = device_->PagesOf(target.memory);
    if (!now.ok()) return While(absl::StrCat("region \"", target.name, "\""), now.status());
    moved = moved || !target.registered || *now != target.pages;
  }
  return moved;
}

// The old registration still exists here, so the new one gets another key.
absl::Status DeviceTargets::Renew(
    const std::function<void(RegionId old_region, RegionId new_region)>& changed) {
  for (Target& target : targets_) {
    WAYBILL_ASSIGN_OR_RETURN(const uint64_t pages, device_->PagesOf(target.memory));
    if (target.registered && pages == target.pages) continue;
    Target fresh = {.name = target.name, .memory = target.memory};
    WAYBILL_RETURN_IF_ERROR(Register(fresh));
    changed(target.region, fresh.region);
    if (target.registered) WAYBILL_RETURN_IF_ERROR(fabric_.Release(target.region));
    target = std::move(fresh);
  }
  reachable_ = true;
  return absl::OkStatus();
}

void DeviceTargets::Release() {
  reachable_ = false;
  for (Target& target : targets_) {
    if (std::exchange(target.registered, false)) (void)fabric_.Release(target.region);
    target.dmabuf = UniqueFd();
  }
}

}  // namespace waybill
