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
  return std::unique_ptr<StagingArea>(new StagingArea(options, ring));
}

}  // namespace waybill
