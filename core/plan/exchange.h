// SPDX-License-Identifier: Apache-2.0

// Describes the scales that one sender computes, and the maxima that it trades with other
// senders.
//
// A shard often ends inside a block of the quantisation, and a block's scale needs the largest
// magnitude of all of it. So the senders that hold parts of such a block, its co-owners, tell each
// other their parts' maxima before they quantise: a few bytes instead of the block.
#ifndef WAYBILL_CORE_PLAN_EXCHANGE_H_
#define WAYBILL_CORE_PLAN_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "core/base/narrow.h"
#include "core/tensor/box.h"
#include "core/tensor/dtype.h"
#include "core/tensor/quantisation.h"

namespace waybill {

// The scales of one shard's blocks. It is also a region: routes read scales from there.
struct ScaleTable {
  uint32_t shard = 0;  // The shard of the sender's manifest whose elements are quantised.
  uint32_t source_region = 0;
  uint64_t source_offset_bytes = 0;
  Dtype source_dtype = Dtype::kBf16;
  std::vector<int64_t> source_strides;  // In elements.
  Quantisation quantisation;
  Extents2 block;  // The extents of a block.
  Extents2 cell;   // The extents of the elements that share one stored scale.
  Box box;         // The shard's box.
  Box blocks;      // The blocks that meet `box`, in the grid of blocks.
  Box cells;       // The scales of these blocks, in the grid of scales. Stored row-major.

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

// Precedes a message's maxima, which are floats, in the mailbox.
struct MaximaHeader {
  uint64_t sequence = 0;  // The same as in a ledger entry.
  uint64_t digest = 0;    // The digest of the maxima.
};

// The maxima of some blocks, in one write. To a peer that is this sender itself (it holds two
// shards of one block) nothing is written: they are combined here.
struct MaximaMessage {
  uint32_t peer = 0;  // A sender.
  // Messages of a step go out when all that were due in earlier steps have come.
  uint32_t step = 0;
  uint64_t mailbox_offset_bytes = 0;  // Its place in the receiver's mailbox.
  std::vector<BlockRun> runs;         // The blocks in this sender's tables.
  std::vector<BlockRun> into;         // The place to which the maxima of a message are combined.

  uint32_t block_count() const {
    uint32_t count = 0;
    for (const BlockRun& run : runs) count += run.count;
    return count;
  }
  // The size of its place in a mailbox.
  uint64_t slot_bytes() const { return SlotBytes(block_count()); }
  static uint64_t SlotBytes(uint32_t blocks) {
    return RoundUp(sizeof(MaximaHeader) + uint64_t{blocks} * sizeof(float), 64);
  }
  bool operator==(const MaximaMessage&) const = default;
};

struct Exchange {
  std::vector<ScaleTable> tables;
  std::vector<MaximaMessage> outgoing;  // Sorted by step, then by peer.
  std::vector<MaximaMessage> incoming;  // Sorted likewise.
  // The size of one mailbox. There are two mailboxes, used in turn, so that a writer of an update
  // that was given up does not write where the next one reads.
  uint64_t mailbox_bytes = 0;

  bool empty() const { return tables.empty(); }
  bool operator==(const Exchange&) const = default;
};

// Says of a table in a pattern which tensors it stands for.
struct TableClass {
  uint32_t grid = 0;     // Equal for the tables of one class of tensors in one quantisation.
  uint32_t holding = 0;  // The place of the shards in TensorClasses::held().
  uint32_t tensor_class = 0;
  uint32_t members = 1;
  uint32_t first_table = 0;  // In the whole exchange, of which a class has a table for each member.
};

// One sender's exchange as it is planned: for the first tensor of each class. Mailboxes have room
// for the messages of all tensors.
struct ExchangePattern {
  Exchange of_first;
  std::vector<TableClass> classes;  // By table.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_EXCHANGE_H_
