#include "core/engine/staging_area.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/chunks.h"

namespace waybill {

absl::StatusOr<std::unique_ptr<StagingArea>> StagingArea::Create(
    Fabric* fabric, const TrainerEngineOptions& options) {
  if (options.chunk_bytes == 0 || options.chunk_bytes % kCutBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunks of ", options.chunk_bytes, " bytes: not a multiple of ", kCutBytes));
  }
  WAYBILL_ASSIGN_OR_RETURN(StagingRing ring,
                           StagingRing::Create(fabric, options.ring_bytes, options.chunk_bytes));
  return std::unique_ptr<StagingArea>(new StagingArea(fabric, options, ring));
}

void StagingArea::AddSource(const MemorySpan& memory, absl::string_view name) {
  if (memory.kind != MemoryKind::kHost || memory.size_bytes == 0) return;
  const absl::StatusOr<Registration> registration = registrations_.Acquire(memory, name);
  if (registration.ok()) {
    sources_[memory.data] = {memory.size_bytes, *registration};
  } else if (why_staged_.empty()) {
    why_staged_ = std::string(registration.status().message());
  }
}

Registration StagingArea::FindSource(const MemorySpan& memory) const {
  const auto source = sources_.find(memory.data);
  if (source == sources_.end() || source->second.first < memory.size_bytes) return {};
  return source->second.second;
}

}  // namespace waybill
