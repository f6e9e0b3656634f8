// SPDX-License-Identifier: Apache-2.0

// Describes the scales that one sender computes, and the maxima that it trades with other
// senders.
//
// A shard often ends inside a block of the quantisation, but the block's scale depends on the
// largest magnitude in the whole block. So the senders that hold parts of such a block, its
// co-owners, send each other the maxima of their parts before they quantise. A maximum is a few
// bytes, much less than the block.
#ifndef WAYBILL_CORE_PLAN_EXCHANGE_H_
#define WAYBILL_CORE_PLAN_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "core/base/narrow.h"
#include "core/tensor/box.h"
#include "core/tensor/dtype.h"
#include "core/tensor/quantisation.h"

namespace waybill {

// The scales of one shard's blocks. A table is also a region, from which routes read scales.
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
  Box blocks;      // The blocks that intersect `box`, in the grid of blocks.
  Box cells;       // The scales of these blocks, in the grid of scales. Stored row-major.

  uint64_t size_bytes() const {
    return static_cast<uint64_t>(cells.element_count()) * SizeBytes(quantisation.scale_dtype);
  }
  bool operator==(const ScaleTable&) const = default;
};

// Consecutive blocks of a table, numbered row-major from the first block of ScaleTable::blocks.
struct BlockRun {
  uint32_t table = 0;
  uint32_t first = 0;
  uint32_t count = 0;

  bool operator==(const BlockRun&) const = default;
};

// The header of a message in the mailbox. The maxima follow as floats.
struct MaximaHeader {
  uint64_t sequence = 0;  // LedgerSequence() of the update.
  uint64_t digest = 0;    // The digest of the maxima.
};

// The maxima of some blocks, sent in one write. If the peer is this sender itself, because it holds
// two shards of one block, the maxima are combined without a write.
struct MaximaMessage {
  uint32_t peer = 0;  // A sender.
  // A message is sent once all incoming messages of earlier steps have arrived.
  uint32_t step = 0;
  uint64_t mailbox_offset_bytes = 0;  // The message's offset in the receiver's mailbox.
  std::vector<BlockRun> runs;         // The blocks in this sender's tables.
  std::vector<BlockRun> into;         // The blocks into which a message's maxima are combined.

  uint32_t block_count() const {
    uint32_t count = 0;
    for (const BlockRun& run : runs) count += run.count;
    return count;
  }
  // Returns the size of the message's slot in a mailbox.
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
  // The size of one mailbox. There are two mailboxes, used in turn, so that a late write of an
  // abandoned update does not land where the next update reads.
  uint64_t mailbox_bytes = 0;

  bool empty() const { return tables.empty(); }
  bool operator==(const Exchange&) const = default;
};

// The tensors that one table of a pattern represents.
struct TableClass {
  uint32_t grid = 0;     // Equal for all tables of one class of tensors and one quantisation.
  uint32_t holding = 0;  // The index of the shards in TensorClasses::held().
  uint32_t tensor_class = 0;
  uint32_t members = 1;
  // The first of the class's tables in the expanded exchange, which has one for each member.
  uint32_t first_table = 0;
};

// One sender's exchange in planned form: only for the first tensor of each class. Mailboxes have
// room for the messages of all tensors.
struct ExchangePattern {
  Exchange of_first;
  std::vector<TableClass> classes;  // By table.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_EXCHANGE_H_
