// SPDX-License-Identifier: Apache-2.0

// What the engines of both sides and whoever drives them have in common.
#ifndef WAYBILL_CORE_PROTOCOL_UPDATE_H_
#define WAYBILL_CORE_PROTOCOL_UPDATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/rank_id.h"
#include "core/plan/lanes.h"

namespace waybill {

// One update, as every rank that takes part has to see it.
struct UpdateId {
  uint64_t version = 0;  // The user's number of the version. It only grows.
  // The controller's number of the update within the group, from 1 to 2^28 - 1. It goes on from
  // term to term, and wraps.
  uint32_t sequence = 0;
  uint64_t epoch = 0;
  uint64_t plan_hash = 0;

  bool operator==(const UpdateId&) const = default;
};

enum class Mode : uint8_t {
  kShadow = 1,      // Two buffers of Waybill's; a commit shows the other one.
  kShadowCopy = 2,  // The engine's memory stays where it is; a commit copies into it.
  kInPlace = 3,     // The engine's memory is written directly.
};

constexpr absl::string_view Name(Mode mode) {
  return mode == Mode::kShadow ? "shadow" : mode == Mode::kShadowCopy ? "shadow-copy" : "in-place";
}

// Where a peer writes one region of a worker's manifest.
struct RegionAddress {
  std::string descriptor;  // For Fabric::Import().
  uint64_t offset_bytes = 0;
};

// One buffer of a worker: a place for each region of its manifest, and for the ledger.
struct BufferAddress {
  std::vector<RegionAddress> regions;
  std::string ledger;
  uint32_t generation = 0;  // How often the buffer was renewed.

  // False for memory that is paused: all descriptors are empty, and READY tells where it is then.
  bool reachable() const { return !ledger.empty(); }
};

// One end of a lane, for the rank at the other.
struct LaneOffer {
  uint32_t peer = 0;  // Rank, of the other role.
  std::string address;
};

// The lanes to one peer, as the plan has them.
struct PeerLanes {
  uint32_t peer = 0;  // Its number in the plan.
  RankId id;          // Who that is.
  std::vector<LanePath> lanes;
  bool kept = false;                // They are there since an earlier term, and go on.
  uint32_t first_ledger_entry = 0;  // The place of the sender's first route in the worker's ledger.
};

// The lanes of a term, as one of its ranks has them.
struct TermLanes {
  // Tells the term from earlier ones of the same lanes: 28 bits.
  uint32_t tag = 0;
  // Every peer with a route. One without a route is named if its lanes are kept for a later term.
  std::vector<PeerLanes> peers;
};

// What carries a lane: Fabric::DescribeLane().
struct LaneReport {
  uint32_t peer = 0;  // Rank, of the other role.
  std::string path;
  bool co_owner = false;   // Between trainers: then the rank is a trainer's.
  bool relay = false;      // Between workers: then the rank is a worker's.
  std::string group = {};  // The group in whose term the lane is.
};

// What moved, counted where it was sent. The counts of equal plans are equal.
struct TransferCounts {
  uint64_t bytes = 0;
  uint64_t writes = 0;        // Posted to a fabric.
  uint64_t stores = 0;        // Chunks stored at their final address through a mapping.
  uint64_t staged_bytes = 0;  // Packed into a slot before they were posted.
  uint64_t immediates = 0;
  // To other trainers, for blocks that they own parts of.
  uint64_t maxima_messages = 0;
  uint64_t maxima_bytes = 0;

  bool operator==(const TransferCounts&) const = default;
  TransferCounts& operator+=(const TransferCounts& other) {
    bytes += other.bytes;
    writes += other.writes;
    stores += other.stores;
    staged_bytes += other.staged_bytes;
    immediates += other.immediates;
    maxima_messages += other.maxima_messages;
    maxima_bytes += other.maxima_bytes;
    return *this;
  }
};

// NaNs and infinities in a shard of a trainer's manifest.
struct NonFinite {
  uint32_t shard = 0;
  uint64_t elements = 0;
};

// The 32 bits that ride behind a write. Who sent it is known from the lane.
struct Immediate {
  enum class Kind : uint8_t {
    kData = 1,  // Behind a lane's last write.
    kMaxima = 2,
    // Its sender has granted what the term needs; the sequence is the term's tag.
    kGranted = 3,
    kChunk = 4,  // Behind a chunk, which can be verified from now on: see ChunkImmediate.
  };
  Kind kind = Kind::kData;
  uint32_t sequence = 0;  // 28 bits.

  constexpr uint32_t Pack() const { return uint32_t{static_cast<uint8_t>(kind)} << 28 | sequence; }
  static constexpr Immediate Unpack(uint32_t bits) {
    return {static_cast<Kind>(bits >> 28), bits & 0x0FFF'FFFF};
  }
};

inline constexpr uint32_t kSequenceMask = 0x0FFF'FFFF;

// What an immediate of kChunk says in its 28 bits. A lane is a queue, and no update begins on it
// before the last one is complete, so 8 bits tell updates apart.
struct ChunkImmediate {
  static constexpr uint32_t kMostChunks = 1 << 20;

  uint32_t sequence = 0;  // The update's, of which the low 8 bits count.
  uint32_t chunk = 0;     // Counts from the first chunk between the two ranks. 20 bits.

  constexpr uint32_t Pack() const {
    return Immediate{Immediate::Kind::kChunk, (sequence & 0xFF) << 20 | chunk}.Pack();
  }
  static constexpr ChunkImmediate Unpack(const Immediate& immediate) {
    return {immediate.sequence >> 20, immediate.sequence & (kMostChunks - 1)};
  }
  constexpr bool IsOf(uint32_t update) const { return sequence == (update & 0xFF); }
};

// Sequences wrap at 28 bits: of two, the one that is less than half the way ahead is the later.
constexpr bool IsLater(uint32_t a, uint32_t b) {
  return ((a - b) & kSequenceMask) < (kSequenceMask + 1) / 2;
}

// One entry a route, in plan order; written by the trainer, compared by the worker.
struct LedgerEntry {
  // LedgerSequence(). An entry with that of another update counts as absent.
  uint64_t sequence = 0;
  uint64_t length_bytes = 0;
  uint64_t digest = 0;
};
static_assert(sizeof(LedgerEntry) == 24);

constexpr uint64_t LedgerSequence(const UpdateId& update) {
  return update.epoch << 28 | update.sequence;
}

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_UPDATE_H_
