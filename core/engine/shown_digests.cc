// SPDX-License-Identifier: Apache-2.0

#include "core/engine/shown_digests.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/stage/device_stager.h"
#include "core/stage/stage_piece.h"
#include "kernels/digest.h"

namespace waybill {
namespace {

constexpr size_t kMostNamed = 8;
// The number of routes of one pass of the device.
constexpr uint32_t kRoutesPerPass = 1024;
constexpr uint64_t kUnusedScratchBytes = 256;  // Nothing is staged.

}  // namespace

void ShownDigests::Add(std::shared_ptr<const ArrivedRoutes> plan, uint32_t first, uint32_t last,
                       const LedgerEntry* ledger) {
  Piece piece{.plan = std::move(plan), .first = first};
  piece.digests.reserve(last - first);
  for (uint32_t r = first; r < last; ++r) piece.digests.push_back(ledger[r].digest);
  pieces_.push_back(std::move(piece));
}

absl::Status ShownDigests::Compare(const Snapshot& snapshot, std::shared_ptr<Device> device,
                                   const std::function<bool(uint32_t region)>& is_there,
                                   const std::stop_token& stop, uint64_t* bytes) const {
  if (!complete_) {
    return absl::FailedPreconditionError(
        absl::StrCat("verify version ", version_,
                     ": it was published without digests, so there is nothing to "
                     "compare with; publish with digests"));
  }
  std::unique_ptr<DeviceStager> stager;
  if (device != nullptr) {
    WAYBILL_ASSIGN_OR_RETURN(
        stager, DeviceStager::Create(std::move(device), {.what = "verify what is shown on a GPU",
                                                         .chunk_bytes = kUnusedScratchBytes,
                                                         .most_pieces = kRoutesPerPass}));
    stager->Begin();
  }
  std::vector<std::string> wrong;
  uint64_t wrong_count = 0, count = 0;
  for (const Piece& piece : pieces_) {
    const RouteTable& routes = piece.plan->routes();
    const auto at = [&](uint32_t route) {
      return snapshot.region(routes.destination_region(route)).data() +
             routes.destination_offset(route);
    };
    const auto check = [&](uint32_t route, uint64_t sum) {
      ++count;
      const uint64_t length = routes.shape(route).size_bytes();
      *bytes += length;
      if (kernels::FinishDigest(sum, length) == piece.digests[route - piece.first]) return;
      if (wrong.size() < kMostNamed) wrong.push_back(piece.plan->NameOf(route));
      ++wrong_count;
    };
    const auto end = piece.first + static_cast<uint32_t>(piece.digests.size());
    for (uint32_t first = piece.first; first < end; first += kRoutesPerPass) {
      DeviceStager::Pass pass(stager.get());
      for (uint32_t r = first; r < std::min(end, first + kRoutesPerPass); ++r) {
        // A witness is compared with scales that other routes bring.
        if (routes.witness(r)) continue;
        if (stop.stop_requested()) break;
        const RouteShape shape = routes.shape(r);
        if (stager != nullptr && is_there(routes.destination_region(r))) {
          pass.DigestInPlace(r, shape, at(r), 0, shape.size_bytes());
        } else {
          check(r, DigestInPlace(shape, at(r), 0, shape.size_bytes()));
        }
      }
      pass.Finish(check);
      if (stop.stop_requested()) {
        return absl::CancelledError(absl::StrCat("verify version ", version_, ": it was stopped"));
      }
      if (stager != nullptr) WAYBILL_RETURN_IF_ERROR(stager->status());
    }
  }
  if (wrong.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "verify version ", version_, ": ", wrong_count, " of ", count,
      " pieces are not what was sent: ", absl::StrJoin(wrong, "; "),
      wrong_count > wrong.size() ? absl::StrCat("; and ", wrong_count - wrong.size(), " more") : "",
      "; something has written to this memory since; the next version repairs it"));
}

}  // namespace waybill
