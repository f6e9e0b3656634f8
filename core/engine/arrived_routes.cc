// SPDX-License-Identifier: Apache-2.0

#include "core/engine/arrived_routes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/engine/chunk_changes.h"
#include "core/tensor/format.h"
#include "kernels/digest.h"

namespace waybill {

ArrivedRoutes::ArrivedRoutes(const Manifest* manifest, RouteTable routes, uint64_t chunk_bytes,
                             std::map<uint32_t, RankId> senders)
    : manifest_(manifest),
      routes_(std::move(routes)),
      chunk_bytes_(chunk_bytes),
      senders_(std::move(senders)),
      chunks_(CutIntoChunks(routes_, chunk_bytes)),
      sums_(routes_.size()),
      changes_(chunks_.chunks.size()) {
  for (uint32_t r = 0; r < routes_.size(); ++r) {
    if (routes_.witness(r)) witnesses_.push_back(r);
  }
  witness_digests_.resize(witnesses_.size());
}

void ArrivedRoutes::Begin(const UpdateId& update, Digests digests, const RegionSpans* base) {
  update_ = update;
  digests_ = digests;
  base_ = base;
  std::fill(changes_.begin(), changes_.end(), 0);
  changes_status_ = absl::OkStatus();
  if (device_ != nullptr) device_->Begin();
  for (auto& sum : sums_) sum.store(0, std::memory_order_relaxed);
}

absl::Status ArrivedRoutes::DigestOn(std::shared_ptr<Device> device, uint32_t threads,
                                     std::function<bool(uint32_t region)> is_there) {
  size_t most_pieces = 1;
  for (const Chunk& chunk : chunks_.chunks) {
    most_pieces = std::max<size_t>(most_pieces, chunk.piece_count);
  }
  most_pieces *= std::min<size_t>(kChunksPerPass, chunks_.chunks.size() + 1);
  most_pieces = std::max(most_pieces, witnesses_.size());
  WAYBILL_ASSIGN_OR_RETURN(
      device_, DeviceStager::Create(std::move(device), {.what = "verify on a GPU",
                                                        .chunk_bytes = chunk_bytes_,
                                                        .most_pieces = most_pieces,
                                                        .parallel_passes = std::max(threads, 1u)}));
  is_there_ = std::move(is_there);
  return absl::OkStatus();
}

void ArrivedRoutes::Digest(absl::Span<const uint32_t> chunks, const RegionSpans& regions) {
  if (device_ != nullptr) {
    DeviceStager::Pass pass(device_.get());
    ForEachJoinedPiece(
        chunks_, chunks, [this](uint32_t route) { return OnDevice(route); },
        [&](const Piece& piece) {
          pass.DigestInPlace(piece.route, routes_.shape(piece.route), At(piece.route, regions),
                             piece.begin, piece.end);
        });
    pass.Finish([this](uint32_t route, uint64_t sum) {
      sums_[route].fetch_add(sum, std::memory_order_relaxed);
    });
  }
  for (const uint32_t chunk : chunks) {
    if (has_changes(chunk)) {
      Complete(chunk, regions);
      continue;
    }
    for (const Piece& piece : chunks_.pieces_of(chunks_.chunks[chunk])) {
      if (OnDevice(piece.route)) continue;
      const uint64_t sum = DigestInPlace(routes_.shape(piece.route), At(piece.route, regions),
                                         piece.begin, piece.end);
      sums_[piece.route].fetch_add(sum, std::memory_order_relaxed);
    }
  }
}

// On any thread.
void ArrivedRoutes::Complete(uint32_t chunk, const RegionSpans& regions) {
  const Chunk& c = chunks_.chunks[chunk];
  absl::Status status =
      base_ == nullptr
          ? absl::DataLossError("what changed in a chunk has come, but no base was offered")
          : TakeChanges(routes_, chunks_.pieces_of(c), c.size_bytes, *base_, regions,
                        [this](uint32_t route, uint64_t sum) {
                          sums_[route].fetch_add(sum, std::memory_order_relaxed);
                        });
  if (status.ok()) return;
  const std::lock_guard lock(changes_mutex_);
  changes_status_.Update(std::move(status));
}

void ArrivedRoutes::DigestWitnesses(const RegionSpans& regions) {
  DeviceStager::Pass pass(device_.get());
  for (uint32_t w = 0; w < witnesses_.size(); ++w) {
    const RouteShape shape = routes_.shape(witnesses_[w]);
    const std::byte* const at = At(witnesses_[w], regions);
    if (OnDevice(witnesses_[w])) {
      pass.DigestInPlace(w, shape, at, 0, shape.size_bytes());
    } else {
      witness_digests_[w] = DigestInPlace(shape, at, 0, shape.size_bytes());
    }
  }
  pass.Finish([this](uint32_t w, uint64_t sum) { witness_digests_[w] = sum; });
  for (uint32_t w = 0; w < witnesses_.size(); ++w) {
    const uint64_t length = routes_.shape(witnesses_[w]).size_bytes();
    witness_digests_[w] = kernels::FinishDigest(witness_digests_[w], length);
  }
}

absl::Status ArrivedRoutes::Compare(uint32_t first, uint32_t last,
                                    const LedgerEntry* ledger) const {
  if (device_ != nullptr) WAYBILL_RETURN_IF_ERROR(device_->status());
  {
    const std::lock_guard lock(changes_mutex_);
    WAYBILL_RETURN_IF_ERROR(changes_status_);
  }
  for (uint32_t r = first; r < last; ++r) {
    const LedgerEntry& entry = ledger[r];
    const uint64_t length = routes_.shape(r).size_bytes();
    if (entry.sequence != LedgerSequence(update_) || entry.length_bytes != length) {
      return absl::DataLossError(absl::StrCat(
          "version ", update_.version, ": ", NameOf(r), ": its ledger entry is of sequence ",
          entry.sequence & kSequenceMask, " and ", entry.length_bytes, " bytes, expected are ",
          update_.sequence, " and ", length));
    }
    if (digests_ == Digests::kOff || routes_.witness(r)) continue;
    const uint64_t digest = kernels::FinishDigest(sums_[r].load(std::memory_order_relaxed), length);
    if (digest != entry.digest) {
      return absl::DataLossError(absl::StrCat("version ", update_.version, ": ", NameOf(r),
                                              ": the ", length, " bytes here have digest ",
                                              absl::Hex(digest), ", the sender's have ",
                                              absl::Hex(entry.digest)));
    }
  }
  return absl::OkStatus();
}

absl::Status ArrivedRoutes::CompareWitnesses(const RegionSpans& regions,
                                             const LedgerEntry* ledger) {
  if (digests_ == Digests::kOff || witnesses_.empty()) return absl::OkStatus();
  DigestWitnesses(regions);
  if (device_ != nullptr) WAYBILL_RETURN_IF_ERROR(device_->status());
  for (size_t w = 0; w < witnesses_.size(); ++w) {
    const uint32_t r = witnesses_[w];
    const uint64_t digest = witness_digests_[w];
    if (digest != ledger[r].digest) {
      return absl::DataLossError(absl::StrCat(
          "version ", update_.version, ": ", NameOf(r), ": it quantised by scales of digest ",
          absl::Hex(ledger[r].digest), ", those that were written here have ", absl::Hex(digest)));
    }
  }
  return absl::OkStatus();
}

uint64_t ArrivedRoutes::DigestOfAll(const LedgerEntry* ledger) const {
  kernels::DigestStream all;
  for (uint32_t r = 0; r < routes_.size(); ++r) {
    all.Absorb(&ledger[r].digest, sizeof(ledger[r].digest));
  }
  return all.sum();
}

std::string ArrivedRoutes::NameOf(uint32_t route) const {
  const RouteView view = routes_[route];
  const ShardView shard = manifest_->shard(view.destination_shard);
  return absl::StrCat("tensor \"", manifest_->tensor_name(shard.tensor_index), "\" ",
                      shard.format.content == Content::kScales ? "scales " : "", ToString(view.box),
                      " from ", ToString(senders_.at(view.sender)));
}

}  // namespace waybill
