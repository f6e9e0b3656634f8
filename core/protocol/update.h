// SPDX-License-Identifier: Apache-2.0

// Types of an update that the engines of both sides and their callers share.
#ifndef WAYBILL_CORE_PROTOCOL_UPDATE_H_
#define WAYBILL_CORE_PROTOCOL_UPDATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/rank_id.h"
#include "core/plan/lanes.h"

namespace waybill {

// Identifies one update. All ranks that take part have equal values.
struct UpdateId {
  uint64_t version = 0;  // The user's number of the version, which only grows.
  // The controller's number of the update within the group, from 1 to 2^28 - 1. It is not reset
  // between terms, and wraps.
  uint32_t sequence = 0;
  uint64_t epoch = 0;
  uint64_t plan_hash = 0;
  // What the version is made of; see selection.h. 0: it is the trainers' tensors, exactly.
  uint64_t composition = 0;

  bool operator==(const UpdateId&) const = default;
};

enum class Mode : uint8_t {
  kShadow = 1,      // Waybill has two buffers; a commit shows the other one.
  kShadowCopy = 2,  // A commit copies the version into the inference engine's memory.
  kInPlace = 3,     // The network writes to the inference engine's memory directly.
};

constexpr absl::string_view Name(Mode mode) {
  return mode == Mode::kShadow ? "shadow" : mode == Mode::kShadowCopy ? "shadow-copy" : "in-place";
}

// The address to which peers write one region of a worker's manifest.
struct RegionAddress {
  std::string descriptor;  // For Fabric::Import().
  uint64_t offset_bytes = 0;
};

// The addresses of one buffer of a worker: of each region of its manifest, and of the ledger.
struct BufferAddress {
  std::vector<RegionAddress> regions;
  std::string ledger;
  uint32_t generation = 0;  // The number of times that the buffer was renewed.

  // Returns false for paused memory, whose descriptors are empty; READY brings the new address.
  bool reachable() const { return !ledger.empty(); }
};

// The address of this rank's end of a lane, for the peer.
struct LaneOffer {
  uint32_t peer = 0;  // Rank, of the other role.
  std::string address;
};

// The planned lanes to one peer.
struct PeerLanes {
  uint32_t peer = 0;  // The peer's number in the plan.
  RankId id;          // The peer's identity.
  std::vector<LanePath> lanes;
  bool kept = false;                // The lanes were opened in an earlier term, and are used again.
  uint32_t first_ledger_entry = 0;  // The index of the sender's first route in the worker's ledger.
};

// One rank's lanes in a term.
struct TermLanes {
  // A number of 28 bits that distinguishes the term from earlier terms of the same lanes.
  uint32_t tag = 0;
  // Every peer with a route, and peers without a route whose lanes are kept for a later term.
  std::vector<PeerLanes> peers;
};

// Describes how a lane is carried, from Fabric::DescribeLane().
struct LaneReport {
  uint32_t peer = 0;  // Rank, of the other role.
  std::string path;
  bool co_owner = false;   // The lane joins two trainers: `peer` is a trainer.
  bool relay = false;      // The lane joins two workers: `peer` is a worker.
  std::string group = {};  // The group to whose term the lane belongs.
};

// How fast a lane carried its part of an update: from the sender's first post to the completion of
// its last one.
struct LaneRate {
  uint32_t peer = 0;   // The receiver's rank.
  std::string fabric;  // The name of the fabric that carries the lane, as "tcp".
  uint64_t bytes = 0;
  absl::Duration time;
  std::string group = {};  // The group to which the update goes.
};

// Counters of one update, kept by the sender. Updates of equal plans have equal counts.
struct TransferCounts {
  uint64_t bytes = 0;
  uint64_t writes = 0;  // Writes posted to a fabric.
  uint64_t stores = 0;  // Chunks stored at their final address through a mapping.
  // Bytes that were packed before they were posted; what receivers share counts once.
  uint64_t staged_bytes = 0;
  uint64_t spared_bytes = 0;  // Bytes that did not travel, because only what changed did.
  uint64_t immediates = 0;
  // Messages to co-owners of blocks.
  uint64_t maxima_messages = 0;
  uint64_t maxima_bytes = 0;

  bool operator==(const TransferCounts&) const = default;
  TransferCounts& operator+=(const TransferCounts& other) {
    bytes += other.bytes;
    writes += other.writes;
    stores += other.stores;
    staged_bytes += other.staged_bytes;
    spared_bytes += other.spared_bytes;
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

// The 32 bits of immediate data that follow a write. The lane identifies the sender.
struct Immediate {
  enum class Kind : uint8_t {
    kData = 1,  // Follows a lane's last write.
    kMaxima = 2,
    // The peer has granted the memory that the term needs; the sequence is the term's tag.
    kGranted = 3,
    kChunk = 4,    // Follows a chunk, which can now be verified; see ChunkImmediate.
    kChanges = 5,  // The same after what changed in a chunk, by which it can be completed.
  };
  Kind kind = Kind::kData;
  uint32_t sequence = 0;  // 28 bits.

  constexpr uint32_t Pack() const { return uint32_t{static_cast<uint8_t>(kind)} << 28 | sequence; }
  static constexpr Immediate Unpack(uint32_t bits) {
    return {static_cast<Kind>(bits >> 28), bits & 0x0FFF'FFFF};
  }
};

inline constexpr uint32_t kSequenceMask = 0x0FFF'FFFF;

// The 28 bits of an immediate of kChunk or kChanges. A lane delivers in order, and an update begins
// on it only after the last one is complete, so 8 bits of the sequence are enough to distinguish
// updates.
struct ChunkImmediate {
  static constexpr uint32_t kMostChunks = 1 << 20;

  uint32_t sequence = 0;  // The update's sequence; only its low 8 bits are sent.
  // The number of the chunk, from 0 for the first chunk between the two ranks. 20 bits.
  uint32_t chunk = 0;

  constexpr uint32_t Pack(Immediate::Kind kind = Immediate::Kind::kChunk) const {
    return Immediate{kind, (sequence & 0xFF) << 20 | chunk}.Pack();
  }
  static constexpr ChunkImmediate Unpack(const Immediate& immediate) {
    return {immediate.sequence >> 20, immediate.sequence & (kMostChunks - 1)};
  }
  constexpr bool IsOf(uint32_t update) const { return sequence == (update & 0xFF); }
};

// Returns true if `a` is later than `b`, or equal: if a - b (mod 2^28) is less than 2^27.
constexpr bool IsLater(uint32_t a, uint32_t b) {
  return ((a - b) & kSequenceMask) < (kSequenceMask + 1) / 2;
}

// The ledger has one entry for each route, in plan order. The sender writes it, and the receiver
// compares its digest with that of the arrived bytes.
struct LedgerEntry {
  // LedgerSequence() of the update. An entry with another value counts as absent.
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
