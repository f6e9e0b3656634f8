// SPDX-License-Identifier: Apache-2.0

#include "core/plan/seams.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/box_index.h"

namespace waybill {
namespace {

// A sender's table; co-owners of a block.
struct Owner {
  uint32_t sender = 0;
  uint32_t table = 0;

  bool operator==(const Owner&) const = default;
  bool operator<(const Owner& other) const {
    return std::pair(sender, table) < std::pair(other.sender, other.table);
  }
};

// Messages while they grow, by who sends, who receives, and when.
struct Draft {
  std::vector<BlockRun> from, to;
};
using Drafts = std::map<std::tuple<uint32_t, uint32_t, uint32_t>, Draft>;

void Extend(std::vector<BlockRun>& runs, uint32_t table, uint32_t block) {
  if (!runs.empty() && runs.back().table == table &&
      runs.back().first + runs.back().count == block) {
    ++runs.back().count;
  } else {
    runs.push_back({table, block, 1});
  }
}

class SeamFinder {
 public:
  SeamFinder(const SourceIndex& sources, const Demands& demands, const RankClasses& receivers,
             std::vector<Shipment>& shipments, std::vector<ExchangePattern>& exchanges)
      : sources_(sources),
        tensors_(sources.tensors()),
        demands_(demands),
        receivers_(receivers),
        shipments_(shipments),
        exchanges_(exchanges) {}

  absl::Status Run() {
    exchanges_.resize(sources_.senders().rank_count());
    for (const Shipment& shipment : shipments_) {
      if (!IsRelayed(shipment)) WAYBILL_RETURN_IF_ERROR(Note(shipment));
    }
    for (auto& [key, grid] : grids_) WAYBILL_RETURN_IF_ERROR(PlanGrid(grid));
    AddWitnesses();
    AddMessages();
    return CheckTables();
  }

 private:
  // One class of tensors in one quantisation. Everything is said of the first tensor.
  struct Grid {
    uint32_t index = 0;
    uint32_t tensor_class = 0;
    absl::string_view name;
    absl::Span<const int64_t> shape;
    Quantisation quantisation;
    Extents2 block;
    // Split blocks, with those that send anything of it.
    std::map<std::vector<int64_t>, std::vector<Owner>> split;
    // The sender that writes a block's scale.
    std::map<std::vector<int64_t>, Owner> writers;
  };

  ShardView Destination(const Shipment& shipment) const {
    const Demand& demand = demands_.demands[shipment.demand];
    return receivers_.manifest(receivers_.class_of(demands_.ReceiverOf(demand)))
        .shard(demands_.WantOf(demand).shard);
  }

  // Returns true for what a receiver sends, who has it quantised already.
  bool IsRelayed(const Shipment& shipment) const {
    return shipment.holder.sender >= exchanges_.size();
  }

  absl::Span<const Recipient> DestinationsOf(const Shipment& shipment) const {
    return demands_.DestinationsOf(demands_.WantOf(demands_.demands[shipment.demand]));
  }

  Grid& GridOf(const Shipment& shipment, const ShardView& destination) {
    const uint32_t tensor_class = demands_.WantOf(demands_.demands[shipment.demand]).tensor_class;
    std::vector<Grid*>& known = grids_of_[tensor_class];
    for (Grid* grid : known) {
      if (grid->quantisation == destination.format.quantisation) return *grid;
    }
    Grid& grid = grids_[{tensor_class, static_cast<uint32_t>(known.size())}];
    grid.index = static_cast<uint32_t>(grids_.size()) - 1;
    grid.tensor_class = tensor_class;
    const uint32_t tensor = tensors_.first(tensor_class);
    grid.name = tensors_.name(tensor);
    grid.shape = tensors_.shape(tensor);
    grid.quantisation = destination.format.quantisation;
    grid.block = BlockExtents(grid.quantisation, grid.shape);
    known.push_back(&grid);
    return grid;
  }

  uint32_t MembersOf(const Grid& grid) const {
    return static_cast<uint32_t>(tensors_.members(grid.tensor_class).size());
  }

  // Returns the number of blocks of a message, for all tensors.
  static uint32_t BlocksOfAll(const ExchangePattern& from, const MaximaMessage& message) {
    uint32_t blocks = 0;
    for (const BlockRun& run : message.runs) {
      blocks += run.count * from.classes[run.table].members;
    }
    return blocks;
  }

  uint32_t ShardOf(const Grid& grid, const Holder& holder) const {
    return tensors_.held(tensors_.first(grid.tensor_class))[holder.holding].shard;
  }

  Owner OwnerOf(const Grid& grid, const Holder& holder) {
    ExchangePattern& exchange = exchanges_[holder.sender];
    const auto [known, is_new] =
        tables_.try_emplace({holder.sender, ShardOf(grid, holder), &grid},
                            static_cast<uint32_t>(exchange.classes.size()));
    if (is_new) {
      const uint32_t first = exchange.classes.empty() ? 0
                                                      : exchange.classes.back().first_table +
                                                            exchange.classes.back().members;
      exchange.of_first.tables.push_back(MakeTable(grid, holder));
      exchange.classes.push_back({.grid = grid.index,
                                  .holding = holder.holding,
                                  .tensor_class = grid.tensor_class,
                                  .members = MembersOf(grid),
                                  .first_table = first});
    }
    return {holder.sender, known->second};
  }

  ScaleTable MakeTable(const Grid& grid, const Holder& holder) const {
    const uint32_t index = ShardOf(grid, holder);
    const ShardView shard = ManifestOf(holder.sender).shard(index);
    ScaleTable table{.shard = index,
                     .source_region = shard.place.region_index,
                     .source_offset_bytes = shard.place.offset_bytes,
                     .source_dtype = shard.format.dtype,
                     .source_strides = {shard.place.strides.begin(), shard.place.strides.end()},
                     .quantisation = grid.quantisation,
                     .block = grid.block,
                     .cell = ScaleExtents(grid.quantisation, grid.shape),
                     .box = shard.box,
                     .blocks = CellsMeeting(shard.box, grid.block),
                     .cells = {}};
    table.cells = CellsOfBlocks(table.blocks, table.block, table.cell, grid.shape);
    return table;
  }

  const ScaleTable& TableOf(const Owner& owner) const {
    return exchanges_[owner.sender].of_first.tables[owner.table];
  }

  absl::Status Note(const Shipment& shipment) {
    const ShardView destination = Destination(shipment);
    if (destination.format.content == Content::kPlain) return absl::OkStatus();
    Grid& grid = GridOf(shipment, destination);
    const Owner owner = OwnerOf(grid, shipment.holder);
    const ScaleTable& table = TableOf(owner);
    const bool scales = destination.format.content == Content::kScales;
    const Box blocks = scales ? BlocksOfCells(shipment.box, table.block, table.cell)
                              : CellsMeeting(shipment.box, table.block);
    bool splits = false;
    ForEachSplit(grid, table, blocks, [&](absl::Span<const int64_t> at) {
      splits = true;
      const std::vector<int64_t> block(at.begin(), at.end());
      grid.split[block].push_back(owner);
      if (scales) grid.writers.try_emplace(block, owner);
    });
    const uint32_t source = demands_.demands[shipment.demand].source;
    if (!splits || senders_.try_emplace(source, shipment.holder.sender).first->second ==
                       shipment.holder.sender) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("tensor \"", grid.name, "\": the split blocks in ",
                                            ToString(shipment.box), " come from trainers ",
                                            senders_[source], " and ", shipment.holder.sender));
  }

  template <typename Visit>
  void ForEachSplit(const Grid& grid, const ScaleTable& table, const Box& blocks,
                    Visit visit) const {
    std::vector<Box> split;
    Subtract(blocks, CellsWithin(table.box, table.block, grid.shape), split);
    for (const Box& box : split) ForEachIndex(box, visit);
  }

  absl::Status PlanGrid(Grid& grid) {
    const bool whole_matrix =
        grid.quantisation.block_rows == 0 && grid.quantisation.block_columns == 0;
    for (auto& [block, owners] : grid.split) {
      std::sort(owners.begin(), owners.end());
      owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
      const Box elements = ElementsOf(OneAt(block), grid.block, grid.shape);
      AddHoldersOfTheRest(grid, elements, owners);
      WAYBILL_RETURN_IF_ERROR(CheckWhole(grid, elements, owners));
      PutWriterFirst(grid, block, owners);
      const auto others = static_cast<uint32_t>(owners.size()) - 1;
      if (others > 0) AddToDrafts(block, owners, whole_matrix ? std::min(others, 2u) : others);
    }
    return absl::OkStatus();
  }

  // Those that send something of a block tell their parts; of the other parts a replica does that
  // belongs with them.
  void AddHoldersOfTheRest(const Grid& grid, const Box& elements, std::vector<Owner>& owners) {
    size_t replica = 0;
    std::vector<absl::Span<const Holder>> untold;
    sources_.ForEachMeeting(grid.tensor_class, elements, [&](uint32_t source) {
      const auto holders = sources_.holders(sources_.source(source));
      const auto told = std::find_if(holders.begin(), holders.end(), [&](const Holder& holder) {
        return std::any_of(owners.begin(), owners.end(), [&](const Owner& owner) {
          return owner.sender == holder.sender && TableOf(owner).shard == ShardOf(grid, holder);
        });
      });
      if (told == holders.end()) {
        untold.push_back(holders);
      } else {
        replica = static_cast<size_t>(told - holders.begin());
      }
    });
    for (const absl::Span<const Holder> holders : untold) {
      owners.push_back(OwnerOf(grid, holders[std::min(replica, holders.size() - 1)]));
    }
    std::sort(owners.begin(), owners.end());
  }

  absl::Status CheckWhole(const Grid& grid, const Box& elements,
                          const std::vector<Owner>& owners) const {
    std::vector<Box> left = {elements}, next;
    for (const Owner& owner : owners) {
      next.clear();
      for (const Box& box : left) Subtract(box, TableOf(owner).box, next);
      std::swap(left, next);
    }
    if (left.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", grid.name, "\": the scale of block ", ToString(elements), " needs ",
        ToString(left.front()), ", which the trainers do not hold; they hold ",
        sources_.DescribeHolders(grid.tensor_class)));
  }

  // The sender that writes the scale collects.
  void PutWriterFirst(const Grid& grid, const std::vector<int64_t>& block,
                      std::vector<Owner>& owners) const {
    const auto writer = grid.writers.find(block);
    if (writer == grid.writers.end()) return;
    const auto at = std::find(owners.begin(), owners.end(), writer->second);
    std::rotate(owners.begin(), at, at + 1);
  }

  // Along a tree: owner i's parent is owner (i - 1) / arity. Maxima go up to the first and down
  // again; a parent's messages need those of its children, which come a step earlier.
  void AddToDrafts(const std::vector<int64_t>& block, const std::vector<Owner>& owners,
                   uint32_t arity) {
    const auto add = [&](const Owner& from, const Owner& to, uint32_t step) {
      Draft& draft = drafts_[{from.sender, to.sender, step}];
      const uint32_t at_sender = static_cast<uint32_t>(RowMajorIndex(TableOf(from).blocks, block));
      const uint32_t at_receiver = static_cast<uint32_t>(RowMajorIndex(TableOf(to).blocks, block));
      Extend(draft.from, from.table, at_sender);
      Extend(draft.to, to.table, at_receiver);
    };
    if (owners.size() == 2) {
      add(owners[0], owners[1], 0);
      add(owners[1], owners[0], 0);
      return;
    }
    const auto depth = [arity](uint32_t i) {
      uint32_t depth = 0;
      for (; i > 0; i = (i - 1) / arity) ++depth;
      return depth;
    };
    const auto last = static_cast<uint32_t>(owners.size()) - 1;
    const uint32_t height = depth(last);
    for (uint32_t i = 1; i <= last; ++i) {
      const Owner& parent = owners[(i - 1) / arity];
      add(owners[i], parent, height - depth(i));
      add(parent, owners[i], height + depth(i) - 1);
    }
  }

  // A shard of scales that a receiver has.
  struct ScaleShard {
    uint32_t demand;  // One of its want's: a witness is of some demand of the same place.
    uint32_t want;
    uint32_t destination;  // Its place among those of the want.
    Box box;
  };

  // Scales that a sender has told a receiver, for some tensors of the class.
  struct Told {
    Box cells;
    Copies copies;
  };

  // Makes each sender tell which scale it used for a split block, whoever gets a part of the block
  // from it; unless the sender writes this scale itself.
  void AddWitnesses() {
    std::map<std::pair<uint32_t, const Grid*>, std::vector<ScaleShard>>
        scale_shards;  // By receiver.
    // By sender, and by want and destination.
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::vector<Told>> told;
    const size_t count = shipments_.size();
    for (size_t i = 0; i < count; ++i) {
      const Shipment& shipment = shipments_[i];
      const ShardView shard = Destination(shipment);
      if (shard.format.content != Content::kScales) continue;
      const uint32_t want = demands_.demands[shipment.demand].want;
      const auto destinations = DestinationsOf(shipment);
      const Grid& grid = GridOf(shipment, shard);
      for (uint32_t d = shipment.copies.first_destination; d < shipment.copies.last_destination;
           ++d) {
        auto& shards = scale_shards[{destinations[d].receiver, &grid}];
        if (std::none_of(shards.begin(), shards.end(), [&](const ScaleShard& s) {
              return s.want == want && s.destination == d;
            })) {
          shards.push_back({shipment.demand, want, d, shard.box});
        }
        told[{shipment.holder.sender, want, d}].push_back({shipment.box, shipment.copies});
      }
    }
    for (size_t i = 0; i < count; ++i) {
      const Shipment shipment = shipments_[i];  // A copy: more are appended.
      const ShardView destination = Destination(shipment);
      if (destination.format.content != Content::kQuantised || IsRelayed(shipment)) continue;
      const Grid& grid = GridOf(shipment, destination);
      const ScaleTable& table = TableOf(OwnerOf(grid, shipment.holder));
      std::vector<Box> split;
      Subtract(CellsMeeting(shipment.box, table.block),
               CellsWithin(table.box, table.block, grid.shape), split);
      for (Box& blocks : split) {
        blocks = CellsOfBlocks(blocks, table.block, table.cell, grid.shape);
      }
      if (split.empty()) continue;
      const size_t first_witness = shipments_.size();
      const auto destinations = DestinationsOf(shipment);
      for (uint32_t d = shipment.copies.first_destination; d < shipment.copies.last_destination;
           ++d) {
        for (const ScaleShard& shard : scale_shards[{destinations[d].receiver, &grid}]) {
          AddWitness(shipment, shard, split, first_witness,
                     told[{shipment.holder.sender, shard.want, shard.destination}]);
        }
      }
    }
  }

  // Adds the cells of a shard of scales that the sender has not told. `first_witness` is the first
  // shipment that was added for `of`: neighbouring destinations of one want share a shipment.
  void AddWitness(const Shipment& of, const ScaleShard& shard, const std::vector<Box>& cells,
                  size_t first_witness, std::vector<Told>& told) {
    std::vector<Box> next;
    for (const Box& some : cells) {
      std::vector<Box> left = {Intersect(some, shard.box)};
      if (left.front().empty()) continue;
      for (const auto& [known, copies] : told) {
        if (copies.first_member > of.copies.first_member ||
            copies.last_member < of.copies.last_member) {
          continue;
        }
        next.clear();
        for (const Box& wanted : left) Subtract(wanted, known, next);
        std::swap(left, next);
      }
      for (const Box& box : left) {
        told.push_back({box, of.copies});
        const auto before =
            std::find_if(shipments_.begin() + static_cast<std::ptrdiff_t>(first_witness),
                         shipments_.end(), [&](const Shipment& s) {
                           return s.demand == shard.demand && s.box == box &&
                                  s.copies.last_destination == shard.destination;
                         });
        if (before != shipments_.end()) {
          ++before->copies.last_destination;
          continue;
        }
        Copies copies = of.copies;
        copies.first_destination = shard.destination;
        copies.last_destination = shard.destination + 1;
        shipments_.push_back({.demand = shard.demand,
                              .holder = of.holder,
                              .box = box,
                              .copies = copies,
                              .witness = true});
      }
    }
  }

  void AddMessages() {
    for (auto& [who, draft] : drafts_) {
      const auto [from, to, step] = who;
      MaximaMessage out{.peer = to, .step = step, .runs = std::move(draft.from), .into = {}};
      if (from == to) {
        out.into = std::move(draft.to);
      } else {
        Exchange& taker = exchanges_[to].of_first;
        out.mailbox_offset_bytes = taker.mailbox_bytes;
        taker.mailbox_bytes += MaximaMessage::SlotBytes(BlocksOfAll(exchanges_[from], out));
        taker.incoming.push_back({.peer = from,
                                  .step = step,
                                  .mailbox_offset_bytes = out.mailbox_offset_bytes,
                                  .runs = std::move(draft.to),
                                  .into = {}});
      }
      exchanges_[from].of_first.outgoing.push_back(std::move(out));
    }
    const auto earlier = [](const MaximaMessage& a, const MaximaMessage& b) {
      return std::pair(a.step, a.peer) < std::pair(b.step, b.peer);
    };
    for (ExchangePattern& pattern : exchanges_) {
      Exchange& exchange = pattern.of_first;
      std::sort(exchange.outgoing.begin(), exchange.outgoing.end(), earlier);
      std::sort(exchange.incoming.begin(), exchange.incoming.end(), earlier);
    }
  }

  // Maxima are taken of rows.
  absl::Status CheckTables() const {
    for (uint32_t t = 0; t < exchanges_.size(); ++t) {
      for (const ScaleTable& table : exchanges_[t].of_first.tables) {
        if (table.source_strides.back() == 1 || table.box.extent(table.box.dimensions() - 1) == 1) {
          continue;
        }
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor \"", ManifestOf(t).tensor_name(ManifestOf(t).shard_tensor(table.shard)),
            "\": trainer ", t, " holds ", ToString(table.box), " with a stride of ",
            table.source_strides.back(),
            " along its last dimension; what is quantised on the way has a stride of 1 there"));
      }
    }
    return absl::OkStatus();
  }

  const Manifest& ManifestOf(uint32_t sender) const {
    const RankClasses& senders = sources_.senders();
    return senders.manifest(senders.class_of(sender));
  }

  const SourceIndex& sources_;
  const TensorClasses& tensors_;
  const Demands& demands_;
  const RankClasses& receivers_;
  std::vector<Shipment>& shipments_;
  std::vector<ExchangePattern>& exchanges_;
  std::map<std::pair<uint32_t, uint32_t>, Grid>
      grids_;  // By class of tensors and number of the quantisation.
  absl::flat_hash_map<uint32_t, std::vector<Grid*>> grids_of_;
  absl::flat_hash_map<std::tuple<uint32_t, uint32_t, const Grid*>, uint32_t> tables_;
  absl::flat_hash_map<uint32_t, uint32_t> senders_;  // Who sends the split blocks, by source.
  Drafts drafts_;
};

}  // namespace

absl::Status PlanExchanges(const SourceIndex& sources, const Demands& demands,
                           const RankClasses& receivers, std::vector<Shipment>& shipments,
                           std::vector<ExchangePattern>& exchanges) {
  return SeamFinder(sources, demands, receivers, shipments, exchanges).Run();
}

uint32_t FindScaleTable(const ExchangePattern& exchange, uint32_t tensor_class, uint32_t holding,
                        const Quantisation& quantisation) {
  uint32_t i = 0;
  while (exchange.classes[i].tensor_class != tensor_class ||
         exchange.classes[i].holding != holding ||
         exchange.of_first.tables[i].quantisation != quantisation) {
    ++i;
  }
  return i;
}

namespace {

// Both ends of a message list the blocks grid by grid, and of each grid tensor by tensor.
std::vector<BlockRun> ExpandRuns(const ExchangePattern& pattern,
                                 const std::vector<BlockRun>& runs) {
  std::vector<BlockRun> expanded;
  for (size_t begin = 0, end = 0; begin < runs.size(); begin = end) {
    const TableClass& of = pattern.classes[runs[begin].table];
    while (end < runs.size() && pattern.classes[runs[end].table].grid == of.grid) ++end;
    for (uint32_t m = 0; m < of.members; ++m) {
      for (size_t i = begin; i < end; ++i) {
        const BlockRun& run = runs[i];
        expanded.push_back({pattern.classes[run.table].first_table + m, run.first, run.count});
      }
    }
  }
  return expanded;
}

}  // namespace

Exchange ExpandExchange(const ExchangePattern& pattern, const TensorClasses& tensors,
                        const Manifest& manifest) {
  Exchange exchange;
  exchange.mailbox_bytes = pattern.of_first.mailbox_bytes;
  for (size_t i = 0; i < pattern.classes.size(); ++i) {
    const TableClass& of = pattern.classes[i];
    for (const uint32_t tensor : tensors.members(of.tensor_class)) {
      ScaleTable& table = exchange.tables.emplace_back(pattern.of_first.tables[i]);
      table.shard = tensors.held(tensor)[of.holding].shard;
      table.source_region = manifest.shard_region(table.shard);
      table.source_offset_bytes = manifest.shard_offset(table.shard);
    }
  }
  const auto expand = [&](const std::vector<MaximaMessage>& from, std::vector<MaximaMessage>& to) {
    for (const MaximaMessage& message : from) {
      MaximaMessage& out = to.emplace_back(message);
      out.runs = ExpandRuns(pattern, message.runs);
      out.into = ExpandRuns(pattern, message.into);
    }
  };
  expand(pattern.of_first.outgoing, exchange.outgoing);
  expand(pattern.of_first.incoming, exchange.incoming);
  return exchange;
}

}  // namespace waybill
