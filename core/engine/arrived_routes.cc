#include "core/engine/arrived_routes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/tensor/format.h"
#include "kernels/digest.h"

namespace waybill {

ArrivedRoutes::ArrivedRoutes(const Manifest* manifest, RouteTable routes, uint64_t chunk_bytes)
    : manifest_(manifest),
      routes_(std::move(routes)),
      chunks_(CutIntoChunks(routes_, chunk_bytes)),
      sums_(routes_.size()) {
  for (uint32_t r = 0; r < routes_.size(); ++r) {
    if (routes_.witness(r)) witnesses_.push_back(r);
  }
}

uint64_t ArrivedRoutes::bytes(uint32_t first, uint32_t last) const {
  uint64_t bytes = 0;
  for (uint32_t r = first; r < last; ++r) bytes += routes_.written_bytes(r);
  return bytes;
}

void ArrivedRoutes::Begin(const UpdateId& update, Digests digests) {
  update_ = update;
  digests_ = digests;
  for (auto& sum : sums_) sum.store(0, std::memory_order_relaxed);
}

void ArrivedRoutes::Digest(uint32_t chunk, const RegionSpans& regions) {
  for (const Piece& piece : chunks_.pieces_of(chunks_.chunks[chunk])) {
    const std::byte* at = regions[routes_.destination_region(piece.route)].data() +
                          routes_.destination_offset(piece.route);
    const uint64_t sum = DigestInPlace(routes_.shape(piece.route), at, piece.begin, piece.end);
    sums_[piece.route].fetch_add(sum, std::memory_order_relaxed);
  }
}

absl::Status ArrivedRoutes::Compare(uint32_t first, uint32_t last,
                                    const LedgerEntry* ledger) const {
  for (uint32_t r = first; r < last; ++r) {
    const LedgerEntry& entry = ledger[r];
    const uint64_t length = routes_.shape(r).size_bytes();
    if (entry.sequence != LedgerSequence(update_) || entry.length_bytes != length) {
      return absl::DataLossError(absl::StrCat(
          NameOf(r), ": its ledger entry is of sequence ", entry.sequence & kSequenceMask, " and ",
          entry.length_bytes, " bytes, expected are ", update_.sequence, " and ", length));
    }
    if (digests_ == Digests::kOff || routes_.witness(r)) continue;
    const uint64_t digest = kernels::FinishDigest(sums_[r].load(std::memory_order_relaxed), length);
    if (digest != entry.digest) {
      return absl::DataLossError(absl::StrCat(NameOf(r), ": the ", length,
                                              " bytes here have digest ", absl::Hex(digest),
                                              ", the sender's have ", absl::Hex(entry.digest)));
    }
  }
  return absl::OkStatus();
}

absl::Status ArrivedRoutes::CompareWitnesses(const RegionSpans& regions,
                                             const LedgerEntry* ledger) const {
  if (digests_ == Digests::kOff) return absl::OkStatus();
  for (const uint32_t r : witnesses_) {
    const RouteShape shape = routes_.shape(r);
    const std::byte* at =
        regions[routes_.destination_region(r)].data() + routes_.destination_offset(r);
    const uint64_t length = shape.size_bytes();
    const uint64_t digest = kernels::FinishDigest(DigestInPlace(shape, at, 0, length), length);
    if (digest != ledger[r].digest) {
      return absl::DataLossError(absl::StrCat(
          NameOf(r), ": it quantised by scales of digest ", absl::Hex(ledger[r].digest),
          ", those that were written here have ", absl::Hex(digest)));
    }
  }
  return absl::OkStatus();
}

std::string ArrivedRoutes::NameOf(uint32_t route) const {
  const RouteView view = routes_[route];
  const ShardView shard = manifest_->shard(view.destination_shard);
  return absl::StrCat("version ", update_.version, ": tensor \"",
                      manifest_->tensor_name(shard.tensor_index), "\" ",
                      shard.format.content == Content::kScales ? "scales " : "", ToString(view.box),
                      " from trainer ", view.trainer);
}

}  // namespace waybill
