// What one trainer works out for what it quantises, and which maxima it trades with other trainers.
//
// A shard often ends inside a block of the quantisation, and a block's scale needs the largest
// magnitude of all of it. So the trainers that hold parts of such a block, its co-owners, tell each
// other their parts' maxima before they quantise: a few bytes instead of the block.
#ifndef WAYBILL_CORE_PLAN_EXCHANGE_H_
#define WAYBILL_CORE_PLAN_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "core/tensor/box.h"
#include "core/tensor/dtype.h"
#include "core/tensor/quantisation.h"

namespace waybill {

// The scales of one shard's blocks. It is also a region: routes read scales from there.
struct ScaleTable {
  uint32_t shard = 0;  // Of the trainer's manifest, and where its elements are.
  uint32_t source_region = 0;
  uint64_t source_offset_bytes = 0;
  Dtype source_dtype = Dtype::kBf16;
  std::vector<int64_t> source_strides;  // In elements.
  Quantisation quantisation;
  Extents2 block;  // Of the quantisation, for the tensor's shape.
  Extents2 cell;   // What one stored scale is for.
  Box box;         // The shard's, of the tensor.
  Box blocks;      // That meet it, of the grid of blocks.
  Box cells;       // Of the grid of scales: those of these blocks. Stored row-major.

  uint64_t size_bytes() const {
    return static_cast<uint64_t>(cells.element_count()) * SizeBytes(quantisation.scale_dtype);
  }
  bool operator==(const ScaleTable&) const = default;
};

// Neighbouring blocks of a table, counted row-major from the first of ScaleTable::blocks.
struct BlockRun {
  uint32_t table = 0;
  uint32_t first = 0;
  uint32_t count = 0;

  bool operator==(const BlockRun&) const = default;
};

// The maxima of some blocks, in one write. To a peer that is this trainer itself (it holds two
// shards of one block) nothing is written: they are combined here.
struct MaximaMessage {
  uint32_t peer = 0;  // A trainer.
  // Messages of a step go out when all that were due in earlier steps have come.
  uint32_t step = 0;
  uint64_t mailbox_offset_bytes = 0;  // In the receiver's mailbox.
  std::vector<BlockRun> runs;         // In this trainer's tables.
  std::vector<BlockRun> into;         // Of messages to itself: where they are combined.

  uint32_t block_count() const {
    uint32_t count = 0;
    for (const BlockRun& run : runs) count += run.count;
    return count;
  }
  bool operator==(const MaximaMessage&) const = default;
};

// In front of a message's maxima, which are floats, in its place in the mailbox.
struct MaximaHeader {
  uint64_t sequence = 0;  // As in a ledger entry.
  uint64_t digest = 0;    // Of the maxima.
};

struct Exchange {
  std::vector<ScaleTable> tables;
  std::vector<MaximaMessage> outgoing;  // By step, then peer.
  std::vector<MaximaMessage> incoming;  // Likewise.
  // For one update; there are two mailboxes, used in turn, so that a writer of an update that was
  // given up does not write where the next one reads.
  uint64_t mailbox_bytes = 0;

  bool empty() const { return tables.empty(); }
  bool operator==(const Exchange&) const = default;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_EXCHANGE_H_
