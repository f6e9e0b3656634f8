// SPDX-License-Identifier: Apache-2.0

#include "core/plan/plan_codec.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/byte_codec.h"

namespace waybill {
namespace {

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("plan of a rank: ", what));
}

// Bounds that no plan comes near, so that no sum of sizes overflows.
constexpr uint64_t kMaxMessageBlocks = uint64_t{1} << 26;
constexpr uint64_t kMaxMailboxBytes = uint64_t{1} << 40;

// A table's fixed part. Strides and boxes follow it.
struct TableRecord {
  uint32_t shard;
  uint32_t source_region;
  uint64_t source_offset_bytes;
  int64_t block[2];
  int64_t cell[2];
  uint32_t block_rows;
  uint32_t block_columns;
  uint32_t scale_rows;
  uint32_t scale_columns;
  uint32_t epsilon_bits;
  uint8_t source_dtype;
  uint8_t dtype;
  uint8_t from;
  uint8_t scale_dtype;
  uint8_t rounding;
  uint8_t division;
  uint8_t stores_reciprocal;
  uint8_t dimensions;
  uint8_t reserved[4];
};
static_assert(sizeof(TableRecord) == 80);

struct MessageRecord {
  uint32_t peer;
  uint32_t step;
  uint64_t mailbox_offset_bytes;
  uint32_t run_count;
  uint32_t into_count;
};

bool ReadNumbers(ByteReader& reader, absl::Span<int64_t> numbers) {
  for (int64_t& number : numbers) {
    if (!reader.Read(number)) return false;
  }
  return true;
}

bool ReadBox(ByteReader& reader, size_t dimensions, Box& box) {
  std::array<int64_t, kMaxDimensions> begins, ends;
  const bool read = ReadNumbers(reader, {begins.data(), dimensions}) &&
                    ReadNumbers(reader, {ends.data(), dimensions});
  if (read) box = Box({begins.data(), dimensions}, {ends.data(), dimensions});
  return read && CheckedElementCount(box).value_or(0) > 0;
}

absl::Status ReadTable(ByteReader& reader, ScaleTable& table) {
  TableRecord r;
  if (!reader.Read(r) || r.dimensions < 2 || r.dimensions > kMaxDimensions || r.block[0] <= 0 ||
      r.block[1] <= 0 || r.cell[0] <= 0 || r.cell[1] <= 0) {
    return Malformed("a scale table's fields are out of range");
  }
  table = {.shard = r.shard,
           .source_region = r.source_region,
           .source_offset_bytes = r.source_offset_bytes,
           .source_dtype = static_cast<Dtype>(r.source_dtype),
           .source_strides = std::vector<int64_t>(r.dimensions),
           .quantisation = {.dtype = static_cast<Dtype>(r.dtype),
                            .from = static_cast<Dtype>(r.from),
                            .scale_dtype = static_cast<Dtype>(r.scale_dtype),
                            .rounding = static_cast<ScaleRounding>(r.rounding),
                            .division = static_cast<Division>(r.division),
                            .stores_reciprocal = r.stores_reciprocal != 0,
                            .epsilon = std::bit_cast<float>(r.epsilon_bits),
                            .block_rows = r.block_rows,
                            .block_columns = r.block_columns,
                            .scale_rows = r.scale_rows,
                            .scale_columns = r.scale_columns},
           .block = {r.block[0], r.block[1]},
           .cell = {r.cell[0], r.cell[1]},
           .box = {},
           .blocks = {},
           .cells = {}};
  WAYBILL_RETURN_IF_ERROR(CheckQuantisation(table.quantisation));
  if (!ReadNumbers(reader, absl::MakeSpan(table.source_strides)) ||
      !ReadBox(reader, r.dimensions, table.box) || !ReadBox(reader, r.dimensions, table.blocks) ||
      !ReadBox(reader, r.dimensions, table.cells)) {
    return Malformed("a scale table's boxes are incomplete");
  }
  return absl::OkStatus();
}

void AppendMessages(std::string& out, const std::vector<MaximaMessage>& messages) {
  AppendBytes(out, uint64_t{messages.size()});
  for (const MaximaMessage& message : messages) {
    AppendBytes(out, MessageRecord{.peer = message.peer,
                                   .step = message.step,
                                   .mailbox_offset_bytes = message.mailbox_offset_bytes,
                                   .run_count = static_cast<uint32_t>(message.runs.size()),
                                   .into_count = static_cast<uint32_t>(message.into.size())});
    for (const BlockRun& run : message.runs) AppendBytes(out, run);
    for (const BlockRun& run : message.into) AppendBytes(out, run);
  }
}

absl::Status ReadRuns(ByteReader& reader, const Exchange& exchange, uint32_t count,
                      std::vector<BlockRun>& runs) {
  if (count > reader.left() / sizeof(BlockRun)) return Malformed("runs of blocks are missing");
  runs.resize(count);
  uint64_t blocks = 0;
  for (BlockRun& run : runs) {
    if (!reader.Read(run)) return Malformed("runs of blocks are missing");
    if (run.table >= exchange.tables.size() ||
        uint64_t{run.first} + run.count >
            static_cast<uint64_t>(exchange.tables[run.table].blocks.element_count())) {
      return Malformed(absl::StrCat("blocks [", run.first, ", ", uint64_t{run.first} + run.count,
                                    ") of scale table ", run.table, " are not there"));
    }
    blocks += run.count;
    if (blocks > kMaxMessageBlocks) {
      return Malformed(absl::StrCat("a message of more than ", kMaxMessageBlocks, " maxima"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadMessages(ByteReader& reader, const Exchange& exchange,
                          std::vector<MaximaMessage>& messages) {
  uint64_t count = 0;
  if (!reader.Read(count) || count > reader.left() / sizeof(MessageRecord)) {
    return Malformed("messages of maxima are missing");
  }
  messages.resize(count);
  for (MaximaMessage& message : messages) {
    MessageRecord record;
    if (!reader.Read(record)) return Malformed("messages of maxima are missing");
    message.peer = record.peer;
    message.step = record.step;
    message.mailbox_offset_bytes = record.mailbox_offset_bytes;
    if (message.mailbox_offset_bytes > kMaxMailboxBytes) {
      return Malformed("a message of maxima lies outside of every mailbox");
    }
    WAYBILL_RETURN_IF_ERROR(ReadRuns(reader, exchange, record.run_count, message.runs));
    WAYBILL_RETURN_IF_ERROR(ReadRuns(reader, exchange, record.into_count, message.into));
  }
  return absl::OkStatus();
}

}  // namespace

void AppendBox(std::string& out, const Box& box) {
  for (const int64_t begin : box.begins()) AppendBytes(out, begin);
  for (const int64_t end : box.ends()) AppendBytes(out, end);
}

void AppendTable(std::string& out, const ScaleTable& table) {
  const Quantisation& q = table.quantisation;
  AppendBytes(out, TableRecord{.shard = table.shard,
                               .source_region = table.source_region,
                               .source_offset_bytes = table.source_offset_bytes,
                               .block = {table.block.rows, table.block.columns},
                               .cell = {table.cell.rows, table.cell.columns},
                               .block_rows = q.block_rows,
                               .block_columns = q.block_columns,
                               .scale_rows = q.scale_rows,
                               .scale_columns = q.scale_columns,
                               .epsilon_bits = std::bit_cast<uint32_t>(q.epsilon),
                               .source_dtype = static_cast<uint8_t>(table.source_dtype),
                               .dtype = static_cast<uint8_t>(q.dtype),
                               .from = static_cast<uint8_t>(q.from),
                               .scale_dtype = static_cast<uint8_t>(q.scale_dtype),
                               .rounding = static_cast<uint8_t>(q.rounding),
                               .division = static_cast<uint8_t>(q.division),
                               .stores_reciprocal = q.stores_reciprocal,
                               .dimensions = static_cast<uint8_t>(table.box.dimensions()),
                               .reserved = {}});
  for (const int64_t stride : table.source_strides) AppendBytes(out, stride);
  AppendBox(out, table.box);
  AppendBox(out, table.blocks);
  AppendBox(out, table.cells);
}

std::string EncodeRankPlan(const BundledRoutes& routes, const Exchange& exchange) {
  const std::string encoded_routes = EncodeBundledRoutes(routes);
  std::string out;
  AppendBytes(out, uint64_t{encoded_routes.size()});
  out += encoded_routes;
  AppendBytes(out, uint64_t{exchange.tables.size()});
  for (const ScaleTable& table : exchange.tables) AppendTable(out, table);
  AppendMessages(out, exchange.outgoing);
  AppendMessages(out, exchange.incoming);
  AppendBytes(out, exchange.mailbox_bytes);
  return out;
}

absl::StatusOr<RankPlan> DecodeRankPlan(absl::string_view bytes) {
  ByteReader sizes(bytes);
  uint64_t routes_size = 0;
  if (!sizes.Read(routes_size) || routes_size > sizes.left()) {
    return Malformed(absl::StrCat(bytes.size(), " bytes are not its encoding"));
  }
  RankPlan plan;
  WAYBILL_ASSIGN_OR_RETURN(plan.routes, DecodeBundledRoutes(sizes.rest().substr(0, routes_size)));
  ByteReader reader(sizes.rest().substr(routes_size));
  uint64_t tables = 0;
  if (!reader.Read(tables) || tables > reader.left() / sizeof(TableRecord)) {
    return Malformed("scale tables are missing");
  }
  plan.exchange.tables.resize(tables);
  for (ScaleTable& table : plan.exchange.tables) {
    WAYBILL_RETURN_IF_ERROR(ReadTable(reader, table));
  }
  WAYBILL_RETURN_IF_ERROR(ReadMessages(reader, plan.exchange, plan.exchange.outgoing));
  WAYBILL_RETURN_IF_ERROR(ReadMessages(reader, plan.exchange, plan.exchange.incoming));
  if (!reader.Read(plan.exchange.mailbox_bytes) || reader.left() != 0) {
    return Malformed(absl::StrCat(reader.left(), " bytes too many, or some are missing"));
  }
  if (plan.exchange.mailbox_bytes > kMaxMailboxBytes) {
    return Malformed(absl::StrCat("a mailbox of ", plan.exchange.mailbox_bytes, " bytes"));
  }
  return plan;
}

namespace {

absl::Status CheckMessages(const Exchange& exchange) {
  for (const MaximaMessage& message : exchange.incoming) {
    const uint64_t size = message.slot_bytes();
    if (message.mailbox_offset_bytes > exchange.mailbox_bytes ||
        size > exchange.mailbox_bytes - message.mailbox_offset_bytes) {
      return Malformed("a message of maxima is not in the mailbox");
    }
    if (!message.into.empty()) return Malformed("a message that arrives is combined elsewhere");
  }
  for (const MaximaMessage& message : exchange.outgoing) {
    uint64_t into = 0;
    for (const BlockRun& run : message.into) into += run.count;
    if (!message.into.empty() && into != message.block_count()) {
      return Malformed(absl::StrCat(message.block_count(), " maxima are combined into ", into));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSenderPlan(const RankPlan& plan) {
  WAYBILL_RETURN_IF_ERROR(CheckMessages(plan.exchange));
  for (uint32_t r = 0; r < plan.routes.size(); ++r) {
    const uint32_t index = plan.routes.scale_table(r);
    const bool quantises = plan.routes.shape(r).transform == Transform::kQuantise;
    if (index == kNoScaleTable && !quantises) continue;
    if (index >= plan.exchange.tables.size()) {
      return Malformed(
          absl::StrCat("route ", r, ": scale table ", index, " of ", plan.exchange.tables.size()));
    }
    const ScaleTable& table = plan.exchange.tables[index];
    if (!(quantises ? table.box : table.cells).Contains(plan.routes.box(r))) {
      return Malformed(absl::StrCat("route ", r, ": ", ToString(plan.routes.box(r)),
                                    " is not in scale table ", index));
    }
  }
  return absl::OkStatus();
}

}  // namespace waybill
