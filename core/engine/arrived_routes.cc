#include "core/engine/arrived_routes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/format.h"
#include "kernels/digest.h"

namespace waybill {

ArrivedRoutes::ArrivedRoutes(const Manifest* manifest, RouteTable routes, uint64_t chunk_bytes,
                             uint32_t first_relay)
    : manifest_(manifest),
      routes_(std::move(routes)),
      chunk_bytes_(chunk_bytes),
      first_relay_(first_relay),
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
  if (device_ != nullptr) device_->Begin();
  for (auto& sum : sums_) sum.store(0, std::memory_order_relaxed);
}

absl::Status ArrivedRoutes::DigestOn(std::shared_ptr<Device> device, uint32_t threads,
                                     std::function<bool(uint32_t region)> is_there) {
  size_t most_pieces = 1;
  for (const Chunk& chunk : chunks_.chunks) {
    most_pieces = std::max<size_t>(most_pieces, chunk.piece_count);
  }
  WAYBILL_ASSIGN_OR_RETURN(
      device_, DeviceStager::Create(std::move(device), {.what = "verify on a GPU",
                                                        .chunk_bytes = chunk_bytes_,
                                                        .most_pieces = most_pieces,
                                                        .parallel_chunks = std::max(threads, 1u)}));
  is_there_ = std::move(is_there);
  return absl::OkStatus();
}

void ArrivedRoutes::Digest(uint32_t chunk, const RegionSpans& regions) {
  const absl::Span<const Piece> pieces = chunks_.pieces_of(chunks_.chunks[chunk]);
  if (device_ != nullptr) DigestOnDevice(pieces, regions);
  for (const Piece& piece : pieces) {
    if (OnDevice(piece.route)) continue;
    const uint64_t sum =
        DigestInPlace(routes_.shape(piece.route), At(piece.route, regions), piece.begin, piece.end);
    sums_[piece.route].fetch_add(sum, std::memory_order_relaxed);
  }
}

void ArrivedRoutes::DigestOnDevice(absl::Span<const Piece> pieces, const RegionSpans& regions) {
  DeviceStager::Chunk queued(device_.get());
  for (const Piece& piece : pieces) {
    if (!OnDevice(piece.route)) continue;
    queued.DigestInPlace(routes_.shape(piece.route), At(piece.route, regions), piece.begin,
                         piece.end);
  }
  const absl::Span<const uint64_t> sums = queued.Finish();
  size_t next = 0;
  for (const Piece& piece : pieces) {
    if (!OnDevice(piece.route)) continue;
    sums_[piece.route].fetch_add(sums[next++], std::memory_order_relaxed);
  }
}

uint64_t ArrivedRoutes::DigestOfAll(uint32_t route, const RegionSpans& regions) const {
  const RouteShape shape = routes_.shape(route);
  const uint64_t length = shape.size_bytes();
  if (!OnDevice(route)) {
    return kernels::FinishDigest(DigestInPlace(shape, At(route, regions), 0, length), length);
  }
  uint64_t sum = 0;
  for (uint64_t begin = 0; begin < length; begin += chunk_bytes_) {
    DeviceStager::Chunk queued(device_.get());
    queued.DigestInPlace(shape, At(route, regions), begin, std::min(begin + chunk_bytes_, length));
    sum += queued.Finish()[0];
  }
  return kernels::FinishDigest(sum, length);
}

absl::Status ArrivedRoutes::Compare(uint32_t first, uint32_t last,
                                    const LedgerEntry* ledger) const {
  if (device_ != nullptr) WAYBILL_RETURN_IF_ERROR(device_->status());
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
    const uint64_t digest = DigestOfAll(r, regions);
    if (device_ != nullptr) WAYBILL_RETURN_IF_ERROR(device_->status());
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
                      " from ", ToString(SenderOf(view.trainer, first_relay_)));
}

}  // namespace waybill
