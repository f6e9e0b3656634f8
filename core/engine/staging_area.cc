// SPDX-License-Identifier: Apache-2.0

#include "core/engine/staging_area.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/chunks.h"

namespace waybill {

absl::StatusOr<std::unique_ptr<StagingArea>> StagingArea::Create(
    Fabric* fabric, const SenderEngineOptions& options) {
  if (options.chunk_bytes == 0 || options.chunk_bytes % kCutBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunks of ", options.chunk_bytes, " bytes: not a multiple of ", kCutBytes));
  }
  WAYBILL_ASSIGN_OR_RETURN(StagingRing ring,
                           StagingRing::Create(fabric, options.ring_bytes, options.chunk_bytes));
  return std::unique_ptr<StagingArea>(new StagingArea(fabric, options, ring));
}

void StagingArea::AddSource(const MemorySpan& memory, absl::string_view name) {
  const auto known = sources_.find(memory.data);
  if (memory.size_bytes == 0 ||
      (known != sources_.end() && known->second.memory.size_bytes >= memory.size_bytes)) {
    return;
  }
  if (known != sources_.end() && known->second.registration.region != RegionId::kNone) {
    (void)registrations_.Release(known->second.registration);
  }
  Source source{.memory = memory, .name = std::string(name)};
  if (absl::Status status = Register(source); !status.ok() && why_staged_.empty()) {
    why_staged_ = std::string(status.message());
  }
  sources_[memory.data] = std::move(source);
}

absl::Status StagingArea::Register(Source& source) {
  source.registration = {};
  if (source.memory.kind != MemoryKind::kDevice) {
    WAYBILL_ASSIGN_OR_RETURN(source.registration,
                             registrations_.Acquire(source.memory, source.name));
    return absl::OkStatus();
  }
  WAYBILL_ASSIGN_OR_RETURN(const int ordinal,
                           FindDevice(source.memory.data, source.memory.size_bytes));
  if (device_ == nullptr || device_->ordinal() != ordinal) {
    WAYBILL_ASSIGN_OR_RETURN(device_, Device::Open(ordinal));
    absl::StatusOr<std::unique_ptr<DeviceSlots>> slots =
        DeviceSlots::Create(&fabric_, device_, ring_.bytes().size());
    if (slots.ok()) {
      device_slots_ = *std::move(slots);
    } else {
      why_no_device_slots_ = std::string(slots.status().message());
    }
  }
  WAYBILL_ASSIGN_OR_RETURN(source.pages, device_->PagesOf(source.memory));
  // The dma-buf is not needed once it is registered.
  const ExportedMemory exported = device_->Export(source.memory);
  const absl::StatusOr<Registration> made = registrations_.Acquire(exported.span, source.name);
  if (!made.ok()) return exported.Refused(made.status());
  source.registration = *made;
  return absl::OkStatus();
}

absl::Status StagingArea::RenewSources() {
  bool moved = false;
  // Sources that are staged move too, because kernels read them.
  const auto is_on_device = [](const Source& source) { return source.pages != 0; };
  for (const auto& [begin, source] : sources_) {
    if (!is_on_device(source)) continue;
    const absl::StatusOr<uint64_t> pages = device_->PagesOf(source.memory);
    if (!pages.ok()) {
      return While(absl::StrCat("read region \"", source.name, "\""), pages.status());
    }
    moved = moved || *pages != source.pages;
  }
  if (!moved) return absl::OkStatus();
  ++source_renewals_;
  // Release all registrations before registering again: a source may lie within another and share
  // its registration.
  std::vector<Source*> sources;
  for (auto& [begin, source] : sources_) {
    if (is_on_device(source)) sources.push_back(&source);
  }
  for (const Source* source : sources) {
    if (source->registration.region == RegionId::kNone) continue;
    WAYBILL_RETURN_IF_ERROR(registrations_.Release(source->registration));
  }
  for (Source* source : sources) {
    if (absl::Status status = Register(*source); !status.ok()) {
      why_staged_ = std::string(status.message());
    }
  }
  return absl::OkStatus();
}

Registration StagingArea::FindSource(const MemorySpan& memory) const {
  const auto source = sources_.find(memory.data);
  if (source == sources_.end() || source->second.memory.size_bytes < memory.size_bytes) return {};
  return source->second.registration;
}

}  // namespace waybill
