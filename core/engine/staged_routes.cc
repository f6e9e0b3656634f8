// SPDX-License-Identifier: Apache-2.0

#include "core/engine/staged_routes.h"

#include <algorithm>
#include <utility>

#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/engine/chunk_changes.h"
#include "core/plan/byte_codec.h"
#include "core/stage/quantise_piece.h"
#include "core/tensor/quantisation.h"
#include "kernels/copy.h"
#include "kernels/digest.h"

namespace waybill {
namespace {

// The number of shards whose maxima a device computes in one pass.
constexpr size_t kTablesPerPass = 32;

}  // namespace

absl::StatusOr<std::unique_ptr<StagedRoutes>> StagedRoutes::Create(RankPlan plan,
                                                                   std::vector<MemorySpan> sources,
                                                                   const StagingArea& area) {
  std::unique_ptr<StagedRoutes> staged(new StagedRoutes(std::move(plan), std::move(sources), area));
  WAYBILL_RETURN_IF_ERROR(staged->OpenDevice(area.options().stage_threads, area.ring().bytes()));
  staged->MakeScaleValues();
  staged->FindWaiting();
  staged->bytes_to_post_.resize(staged->chunk_count());
  return staged;
}

StagedRoutes::StagedRoutes(RankPlan plan, std::vector<MemorySpan> sources, const StagingArea& area)
    : plan_(std::move(plan)),
      area_(area),
      sources_(std::move(sources)),
      source_renewals_(area.source_renewals()),
      list_(CutIntoChunks(plan_.routes, area.options().chunk_bytes)),
      sums_(plan_.routes.size()) {
  for (const MemorySpan& source : sources_) registrations_.push_back(area.FindSource(source));
  for (uint32_t r = 0; r < routes().size(); ++r) {
    const bool registered = routes().source_region(r) < registrations_.size() &&
                            registrations_[routes().source_region(r)].region != RegionId::kNone;
    direct_.push_back(registered && IsDirect(routes(), r, area.options().direct_run_bytes));
  }
  for (const Chunk& chunk : list_.chunks) {
    uint64_t direct_bytes = 0;
    for (const Piece& piece : list_.pieces_of(chunk)) {
      if (direct_[piece.route]) direct_bytes += piece.size_bytes();
    }
    direct_bytes_.push_back(direct_bytes);
    for (const bool direct : {false, true}) {
      chunk_writes_.clear();
      AppendWrites(
          routes(), list_, chunk, [&](uint32_t r) { return direct && direct_[r]; }, chunk_writes_);
      most_writes_ = std::max(most_writes_, chunk_writes_.size());
    }
  }
  chunk_writes_.reserve(most_writes_);
}

absl::Status StagedRoutes::OpenDevice(uint32_t threads, absl::Span<std::byte> ring) {
  WAYBILL_ASSIGN_OR_RETURN(auto device, OpenDeviceOf(sources_));
  if (device == nullptr) return absl::OkStatus();
  DeviceStager::Options options = {.chunk_bytes = kCutBytes,
                                   .most_pieces = 1,
                                   .parallel_passes = std::max(threads, 1u),
                                   .slots = ring};
  if (area_.device_slots() != nullptr) options.device_slots = area_.device_slots()->bytes();
  for (const Chunk& chunk : list_.chunks) {
    options.chunk_bytes = std::max(options.chunk_bytes, chunk.size_bytes);
    options.most_pieces = std::max<size_t>(options.most_pieces, chunk.piece_count);
  }
  options.most_pieces *= std::min<size_t>(kChunksPerPass, list_.chunks.size() + 1);
  WAYBILL_ASSIGN_OR_RETURN(device_, DeviceStager::Create(std::move(device), options));
  return device_->SetTables(exchange().tables);
}

void StagedRoutes::FindWaiting() {
  for (const Chunk& chunk : list_.chunks) {
    bool waits = false, changes = true;
    for (const Piece& piece : list_.pieces_of(chunk)) {
      const uint32_t table = routes().scale_table(piece.route);
      waits = waits || (table != kNoScaleTable && scale_values_[table].IsEarly(BlocksOf(piece)));
      changes = changes && table == kNoScaleTable && !OnDevice(piece.route);
    }
    waits_.push_back(waits);
    changes_.push_back(changes);
  }
}

void StagedRoutes::MakeScaleValues() {
  for (const ScaleTable& table : exchange().tables) {
    std::vector<std::byte>& cells = cells_.emplace_back(table.size_bytes());
    sources_.push_back({.data = cells.data(), .size_bytes = cells.size()});
    const MemorySpan& source = sources_[table.source_region];
    scale_values_.emplace_back(&table, source.data + table.source_offset_bytes, cells.data(),
                               source.kind == MemoryKind::kDevice ? device_.get() : nullptr);
  }
  for (const auto* messages : {&exchange().outgoing, &exchange().incoming}) {
    for (const MaximaMessage& message : *messages) {
      for (const BlockRun& run : message.runs) scale_values_[run.table].Share(run);
      for (const BlockRun& run : message.into) scale_values_[run.table].Share(run);
    }
  }
  for (uint32_t t = 0; t < scale_values_.size(); ++t) {
    scale_values_[t].PlanEarlyTasks();
    for (uint32_t i = 0; i < scale_values_[t].early_task_count(); ++i) {
      early_tasks_.push_back({.table = t, .task = i, .on_device = {}});
    }
  }
  std::vector<ElementReader::Shard> on_device;
  for (uint32_t t = 0; t < scale_values_.size(); ++t) {
    if (TableIsOnDevice(t)) on_device.push_back(scale_values_[t].ForReader());
    if (on_device.empty() || (on_device.size() < kTablesPerPass && t + 1 < scale_values_.size())) {
      continue;
    }
    early_tasks_.push_back({.table = 0, .task = 0, .on_device = std::exchange(on_device, {})});
  }
}

// Returns the blocks of the elements that the route quantises, or whose scales it brings.
Box StagedRoutes::BlocksOf(uint32_t route) const {
  const ScaleTable& table = exchange().tables[routes().scale_table(route)];
  return routes().shape(route).transform == Transform::kQuantise
             ? CellsMeeting(routes().box(route), table.block)
             : BlocksOfCells(routes().box(route), table.block, table.cell);
}

// Returns the blocks in the rows of the piece. For scales, or several matrices, returns all blocks
// of the route.
Box StagedRoutes::BlocksOf(const Piece& piece) const {
  const RouteShape shape = routes().shape(piece.route);
  Box box = routes().box(piece.route);
  const int row = box.dimensions() - 2;
  for (int d = 0; d < row; ++d) {
    if (box.extent(d) > 1) return BlocksOf(piece.route);
  }
  if (shape.transform != Transform::kQuantise) return BlocksOf(piece.route);
  const auto columns = static_cast<uint64_t>(shape.axes.back().extent);
  const int64_t first = box.begin(row);
  box.Set(row, first + static_cast<int64_t>(piece.begin / columns),
          first + static_cast<int64_t>((piece.end - 1) / columns) + 1);
  return CellsMeeting(box, exchange().tables[routes().scale_table(piece.route)].block);
}

void StagedRoutes::Begin(const UpdateId& update, Digests digests, SourcesAre sources,
                         const VersionsInMemory& versions) {
  update_ = update;
  before_ = versions.before;
  digests_ = digests;
  sources_are_ = sources;
  MoveSources(versions.newest);
  if (std::exchange(source_renewals_, area_.source_renewals()) != area_.source_renewals()) {
    FindRegistrations();
  }
  for (auto& sum : sums_) sum.store(0, std::memory_order_relaxed);
  for (ScaleValues& values : scale_values_) values.Begin();
  if (device_ != nullptr) device_->Begin();
}

// Images keep two versions in two halves of their memory, which take turns.
void StagedRoutes::MoveSources(absl::Span<const MemorySpan> to) {
  if (to.empty() || to.front().data == sources_.front().data) return;
  std::copy(to.begin(), to.end(), sources_.begin());
  for (size_t t = 0; t < scale_values_.size(); ++t) {
    const ScaleTable& table = exchange().tables[t];
    scale_values_[t].SetSource(sources_[table.source_region].data + table.source_offset_bytes);
  }
  FindRegistrations();
}

void StagedRoutes::FindRegistrations() {
  sources_are_registered_ = true;
  for (size_t i = 0; i < registrations_.size(); ++i) {
    if (registrations_[i].region == RegionId::kNone) continue;
    const Registration now = area_.FindSource(sources_[i]);
    sources_are_registered_ = sources_are_registered_ && now.region != RegionId::kNone;
    if (now.region != RegionId::kNone) registrations_[i] = now;
  }
}

absl::Status StagedRoutes::SetSources(std::vector<MemorySpan> sources) {
  std::move(sources.begin(), sources.end(), sources_.begin());
  sources_are_registered_ = false;
  if (device_ != nullptr) return absl::OkStatus();
  return OpenDevice(area_.options().stage_threads, area_.ring().bytes());
}

void StagedRoutes::RunEarlyTask(uint32_t i) {
  if (!early_tasks_[i].on_device.empty()) return device_->CombineMaxima(early_tasks_[i].on_device);
  scale_values_[early_tasks_[i].table].RunEarlyTask(early_tasks_[i].task);
}

void StagedRoutes::FinishEarly() {
  DeviceStager::Pass pass(device_.get());
  for (uint32_t t = 0; t < scale_values_.size(); ++t) {
    scale_values_[t].FinishEarly();
    if (TableIsOnDevice(t)) pass.TakeFactors(t, scale_values_[t]);
  }
  pass.Finish();
}

absl::Status StagedRoutes::CheckRead(const Fabric& fabric, LaneId lane) const {
  for (const Registration& source : registrations_) {
    if (source.region == RegionId::kNone) continue;
    WAYBILL_RETURN_IF_ERROR(fabric.CheckRead(lane, source.region));
  }
  return absl::OkStatus();
}

bool StagedRoutes::ReadsDeviceSlots(const Fabric& fabric, LaneId lane) const {
  return area_.device_slots() != nullptr &&
         fabric.CheckRead(lane, area_.device_slots()->region()).ok();
}

bool StagedRoutes::PacksOnDevice(const Chunk& chunk, Reads reads) const {
  if (!reads.device_slots) return false;
  const absl::Span<const Piece> pieces = list_.pieces_of(chunk);
  return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    return OnDevice(piece.route) && IsStaged(piece, reads);
  });
}

Registration StagedRoutes::SlotOf(uint32_t chunk, Reads reads, uint32_t slot) const {
  const bool on_device = PacksOnDevice(list_.chunks[chunk], reads);
  return {on_device ? area_.device_slots()->region() : area_.ring().region(),
          area_.ring().OffsetOf(slot)};
}

void StagedRoutes::AppendWritesOf(uint32_t chunk, Reads reads, const BufferAccess& buffer,
                                  const Registration& packed, uint64_t size_bytes,
                                  std::vector<Write>& writes) {
  chunk_writes_.clear();
  AppendWrites(
      routes(), list_, list_.chunks[chunk], [&](uint32_t r) { return reads.sources && direct_[r]; },
      chunk_writes_);
  for (const ChunkWrite& write : chunk_writes_) {
    if (size_bytes == 0) return;
    const RegionAccess& region = buffer.regions[write.destination_region];
    Registration source = packed;
    if (write.source_region != ChunkWrite::kSlot) source = registrations_[write.source_region];
    writes.push_back(
        {.source = source.region,
         .source_offset_bytes = source.offset_bytes + write.source_offset_bytes,
         .destination = region.remote,
         .destination_offset_bytes = region.offset_bytes + write.destination_offset_bytes,
         .size_bytes = std::min(write.size_bytes, size_bytes)});
    size_bytes -= writes.back().size_bytes;
  }
}

bool StagedRoutes::IsMapped(uint32_t chunk, const BufferAccess& buffer) const {
  for (const Piece& piece : list_.pieces_of(list_.chunks[chunk])) {
    if (buffer.regions[routes().destination_region(piece.route)].mapped == nullptr ||
        OnDevice(piece.route)) {
      return false;
    }
  }
  return true;
}

uint64_t StagedRoutes::Stage(const Piece& piece, std::byte* destination, bool packed) {
  const RouteShape shape = routes().shape(piece.route);
  const std::byte* source = SourceOf(piece.route);
  const uint32_t table = routes().scale_table(piece.route);
  if (table != kNoScaleTable) {
    ScaleValues& scales = scale_values_[table];
    if (shape.transform == Transform::kQuantise) {
      const auto quantise = packed ? QuantisePacked : QuantiseInPlace;
      return quantise(shape, routes().box(piece.route), scales, source, piece.begin, piece.end,
                      destination, Computed());
    }
    scales.Need(BlocksOf(piece.route));
  }
  const auto stage = packed ? waybill::StagePacked : waybill::StageInPlace;
  return stage(shape, source, piece.begin, piece.end, destination, Computed());
}

void StagedRoutes::StageInPlace(uint32_t chunk, const BufferAccess& buffer) {
  for (const Piece& piece : list_.pieces_of(list_.chunks[chunk])) {
    std::byte* destination = buffer.regions[routes().destination_region(piece.route)].mapped +
                             routes().destination_offset(piece.route);
    const uint64_t sum = Stage(piece, destination, /*packed=*/false);
    sums_[piece.route].fetch_add(sum, std::memory_order_relaxed);
  }
  kernels::StreamFence();
}

void StagedRoutes::StagePacked(absl::Span<const ChunkInSlot> chunks,
                               absl::FunctionRef<Reads(uint32_t chunk)> reads_of) {
  for (const ChunkInSlot& c : chunks) {
    const Reads reads = reads_of(c.chunk);
    std::byte* at = area_.ring().BytesOf(c.slot);
    for (const Piece& piece : list_.pieces_of(list_.chunks[c.chunk])) {
      if (!IsStaged(piece, reads)) continue;
      if (!OnDevice(piece.route)) {
        const uint64_t sum = Stage(piece, at, /*packed=*/true);
        sums_[piece.route].fetch_add(sum, std::memory_order_relaxed);
      }
      at += piece.size_bytes();
    }
  }
  kernels::StreamFence();
  if (device_ == nullptr) return;
  DeviceStager::Pass pass(device_.get());
  for (const ChunkInSlot& c : chunks) {
    StageFromDevice(list_.chunks[c.chunk], reads_of(c.chunk), area_.ring().BytesOf(c.slot), pass);
  }
  Finish(pass);
}

void StagedRoutes::StageChanges(const ChunkInSlot& chunk) {
  const Chunk& c = list_.chunks[chunk.chunk];
  const absl::Span<std::byte> slot(area_.ring().BytesOf(chunk.slot), c.size_bytes);
  bytes_to_post_[chunk.chunk] = waybill::StageChanges(
      routes(), list_.pieces_of(c), sources_, before_, slot, [this](uint32_t route, uint64_t sum) {
        sums_[route].fetch_add(sum, std::memory_order_relaxed);
      });
}

std::string StagedRoutes::ContentToShare(uint32_t chunk) const {
  const Chunk& c = list_.chunks[chunk];
  if (waits_[chunk] || direct_bytes_[chunk] == c.size_bytes) return {};
  std::string content;
  for (const Piece& piece : list_.pieces_of(c)) {
    if (OnDevice(piece.route)) return {};
    const RouteView route = routes()[piece.route];
    const bool has_table = route.scale_table != kNoScaleTable;
    // Tables are numbered as each plan needs them, and so are their regions.
    AppendBytes(content, routes().reads_scales(piece.route) ? kNoScaleTable : route.source_region);
    AppendBytes(content, route.source_offset_bytes);
    AppendBytes(content, route.shape.transform);
    AppendBytes(content, route.shape.source_element_bytes);
    AppendBytes(content, route.shape.destination_element_bytes);
    AppendBytes(content, route.shape.axes.size());
    for (const Axis& axis : route.shape.axes) {
      AppendBytes(content, axis.extent);
      AppendBytes(content, axis.source_stride);
    }
    AppendBytes(content, piece.begin);
    AppendBytes(content, piece.end);
    AppendBytes(content, has_table);
    if (!has_table) continue;
    AppendTable(content, exchange().tables[route.scale_table]);
    AppendBox(content, route.box);
  }
  return Sha256(content);
}

void StagedRoutes::PackShared(uint32_t chunk, Packed as, absl::Span<std::byte> memory,
                              PackedChunk& result) {
  const absl::Span<const Piece> pieces = list_.pieces_of(list_.chunks[chunk]);
  result.bytes_to_post = memory.size();
  if (as == Packed::kChanges) {
    size_t p = 0;
    result.bytes_to_post =
        waybill::StageChanges(routes(), pieces, sources_, before_, memory,
                              [&](uint32_t, uint64_t sum) { result.sums[p++] = sum; });
  } else {
    std::byte* at = memory.data();
    for (size_t p = 0; p < pieces.size(); ++p) {
      result.sums[p] = Stage(pieces[p], at, /*packed=*/true);
      at += pieces[p].size_bytes();
    }
    kernels::StreamFence();
  }
  for (size_t p = 0; p < pieces.size(); ++p) {
    const uint32_t table = routes().scale_table(pieces[p].route);
    result.nonfinite[p] = table == kNoScaleTable ? 0 : scale_values_[table].nonfinite();
  }
}

void StagedRoutes::TakePacked(uint32_t chunk, const PackedChunk& packed) {
  bytes_to_post_[chunk] = packed.bytes_to_post;
  const absl::Span<const Piece> pieces = list_.pieces_of(list_.chunks[chunk]);
  for (size_t p = 0; p < pieces.size(); ++p) {
    const uint32_t route = pieces[p].route;
    sums_[route].fetch_add(packed.sums[p], std::memory_order_relaxed);
    const uint32_t table = routes().scale_table(route);
    if (table != kNoScaleTable) scale_values_[table].TakeNonFinite(packed.nonfinite[p]);
  }
}

void StagedRoutes::DigestDirect(absl::Span<const uint32_t> chunks) {
  if (device_ != nullptr) {
    DeviceStager::Pass pass(device_.get());
    ForEachJoinedPiece(
        list_, chunks, [this](uint32_t route) { return direct_[route] && OnDevice(route); },
        [&](const Piece& piece) {
          pass.DigestSource(piece.route, routes().shape(piece.route), SourceOf(piece.route),
                            piece.begin, piece.end);
        });
    Finish(pass);
  }
  for (const uint32_t chunk : chunks) {
    for (const Piece& piece : list_.pieces_of(list_.chunks[chunk])) {
      if (!direct_[piece.route] || OnDevice(piece.route)) continue;
      const uint64_t sum =
          DigestSource(routes().shape(piece.route), SourceOf(piece.route), piece.begin, piece.end);
      sums_[piece.route].fetch_add(sum, std::memory_order_relaxed);
    }
  }
}

void StagedRoutes::Finish(DeviceStager::Pass& pass) {
  pass.Finish([this](uint32_t route, uint64_t sum) {
    sums_[route].fetch_add(sum, std::memory_order_relaxed);
  });
}

// Stages the pieces of the chunk whose sources are on the device. If the chunk is packed on the
// device, copies the pieces that the host has packed to it.
void StagedRoutes::StageFromDevice(const Chunk& chunk, Reads reads, std::byte* slot,
                                   DeviceStager::Pass& pass) {
  std::byte* to = slot;
  const bool packs_there = PacksOnDevice(chunk, reads);
  if (packs_there) {
    to = area_.device_slots()->bytes().data() + (slot - area_.ring().bytes().data());
  }
  for (const Piece& piece : list_.pieces_of(chunk)) {
    if (!IsStaged(piece, reads)) continue;
    const RouteShape shape = routes().shape(piece.route);
    const std::byte* const source = SourceOf(piece.route);
    if (OnDevice(piece.route) && shape.transform == Transform::kQuantise) {
      const uint32_t table = routes().scale_table(piece.route);
      pass.Quantise(piece.route, shape, routes().box(piece.route), table, scale_values_[table],
                    source, piece.begin, piece.end, to, Computed());
    } else if (OnDevice(piece.route)) {
      pass.Stage(piece.route, shape, source, piece.begin, piece.end, to, Computed());
    } else if (packs_there) {
      pass.TakePacked(slot, piece.size_bytes(), to);
    }
    slot += piece.size_bytes();
    to += piece.size_bytes();
  }
}

absl::Status StagedRoutes::status() const {
  return device_ == nullptr ? absl::OkStatus() : device_->status();
}

std::vector<NonFinite> StagedRoutes::FindNonFinite() const {
  std::vector<NonFinite> found;
  for (const ScaleValues& values : scale_values_) {
    if (values.nonfinite() > 0) found.push_back({values.table().shard, values.nonfinite()});
  }
  return found;
}

// Returns the digest of a witness, that is, of scales that depend on other senders' maxima. Call it
// after FinishEarly().
uint64_t StagedRoutes::WitnessDigest(uint32_t route) const {
  const RouteShape shape = routes().shape(route);
  const uint64_t size = shape.size_bytes();
  std::byte scratch[kCutBytes];
  uint64_t sum = 0;
  for (uint64_t at = 0; at < size; at += kCutBytes) {
    sum += waybill::StagePacked(shape, SourceOf(route), at, std::min(size, at + kCutBytes), scratch,
                                Digests::kOn);
  }
  return sum;
}

void StagedRoutes::FillLedger(uint32_t first, uint32_t count, LedgerEntry* entries) const {
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t route = first + i;
    const uint64_t length = routes().shape(route).size_bytes();
    uint64_t digest = 0;
    if (sources_are_ == SourcesAre::kArriving) {
      digest = sums_[route].load(std::memory_order_relaxed);
    } else if (digests_ == Digests::kOn) {
      digest = kernels::FinishDigest(routes().witness(route)
                                         ? WitnessDigest(route)
                                         : sums_[route].load(std::memory_order_acquire),
                                     length);
    }
    entries[i] = {.sequence = LedgerSequence(update_), .length_bytes = length, .digest = digest};
  }
}

}  // namespace waybill
