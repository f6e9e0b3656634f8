// SPDX-License-Identifier: Apache-2.0

#include "core/stage/device_stager.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/chunks.h"
#include "core/stage/cast_of.h"
#include "core/stage/piece_walk.h"
#include "kernels/cuda/cast.h"
#include "kernels/cuda/digest.h"
#include "kernels/cuda/maxima.h"
#include "kernels/cuda/quantise.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/transpose.h"
#include "kernels/digest.h"
#include "kernels/maxima.h"

namespace waybill {
namespace {

using kernels::cuda::LeafSum;

// A route as it lies on one of its sides.
struct OneSide {
  OneSide(const RouteShape& route, int64_t Axis::* stride, uint32_t element_bytes)
      : axes(route.axes.begin(), route.axes.end()) {
    for (Axis& axis : axes) axis.source_stride = axis.destination_stride = axis.*stride;
    shape = {.source_element_bytes = element_bytes,
             .destination_element_bytes = element_bytes,
             .axes = axes};
  }

  absl::InlinedVector<Axis, 8> axes;
  RouteShape shape;
};

// Returns the block that elements [first, last) of the walk are, if they are whole rows of a
// rectangle, or of one row.
std::optional<PieceBlock> OnlyBlock(const RouteShape& shape, int64_t first, int64_t last) {
  std::optional<PieceBlock> only;
  ForEachBlock(shape, first, last, Packing::kPacked, [&](const PieceBlock& block) {
    if (!only) only = block;
  });
  if (only && static_cast<int64_t>(only->rows * only->columns) != last - first) only.reset();
  return only;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceStager>> DeviceStager::Create(std::shared_ptr<Device> device,
                                                                   const Options& options) {
  std::unique_ptr<DeviceStager> stager(new DeviceStager(std::move(device), options));
  WAYBILL_RETURN_IF_ERROR(While(options.what, stager->MakeWorkspaces()));
  if (!options.slots.empty()) {
    stager->pinned_slots_ = PinnedMemory(stager->device_, options.slots);
  }
  return stager;
}

absl::StatusOr<DeviceStager::HostMemory> DeviceStager::AllocateHost(uint64_t size_bytes) const {
  // Whole pages: two pinned ranges must not share one.
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t whole_bytes = (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
  HostMemory memory;
  memory.data.reset(static_cast<std::byte*>(std::aligned_alloc(page_bytes, whole_bytes)));
  if (memory.data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("allocate ", whole_bytes, " bytes to pin"));
  }
  memory.pinned = PinnedMemory(device_, {memory.data.get(), whole_bytes});
  return memory;
}

absl::Status DeviceStager::MakeWorkspaces() {
  const uint64_t sums_bytes = options_.most_pieces * sizeof(uint64_t);
  workspaces_.resize(options_.parallel_passes);
  for (Workspace& workspace : workspaces_) {
    WAYBILL_ASSIGN_OR_RETURN(workspace.stream, device_->MakeStream());
    WAYBILL_ASSIGN_OR_RETURN(void* const scratch, device_->Allocate(options_.chunk_bytes));
    workspace.scratch = static_cast<std::byte*>(scratch);
    WAYBILL_ASSIGN_OR_RETURN(void* const sums, device_->Allocate(sums_bytes));
    workspace.device_sums = static_cast<uint64_t*>(sums);
    WAYBILL_ASSIGN_OR_RETURN(workspace.host, AllocateHost(sums_bytes));
    workspace.sums = reinterpret_cast<uint64_t*>(workspace.host.data.get());
    workspace.routes.reserve(options_.most_pieces);
  }
  return absl::OkStatus();
}

DeviceStager::~DeviceStager() {
  for (const Workspace& workspace : workspaces_) {
    device_->DestroyStream(workspace.stream);
    device_->Free(workspace.scratch);
    device_->Free(workspace.device_sums);
  }
  device_->Free(factors_);
}

void DeviceStager::Begin() {
  const std::lock_guard lock(mutex_);
  status_ = absl::OkStatus();
}

absl::Status DeviceStager::SetTables(absl::Span<const ScaleTable> tables) {
  if (tables.empty()) return absl::OkStatus();
  first_table_ = tables.data();
  size_t all_blocks = 0;
  for (const ScaleTable& table : tables) {
    tables_.push_back(
        {.first_block = all_blocks, .blocks = static_cast<size_t>(table.blocks.element_count())});
    all_blocks += tables_.back().blocks;
  }
  // There may be a hundred thousand tables, and a call of the driver may take a millisecond.
  const size_t size_bytes = std::max<size_t>(all_blocks, 1) * sizeof(float);
  WAYBILL_ASSIGN_OR_RETURN(void* const memory, device_->Allocate(size_bytes));
  factors_ = static_cast<float*>(memory);
  WAYBILL_ASSIGN_OR_RETURN(host_factors_, AllocateHost(size_bytes));
  for (Table& table : tables_) {
    table.factors = factors_ + table.first_block;
    table.values = reinterpret_cast<float*>(host_factors_.data.get()) + table.first_block;
  }
  return absl::OkStatus();
}

absl::Status DeviceStager::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

bool DeviceStager::Check(const absl::Status& status) {
  if (status.ok()) return true;
  const std::lock_guard lock(mutex_);
  if (status_.ok()) status_ = While(options_.what, status);
  return false;
}

// --- passes ---

DeviceStager::Pass::~Pass() {
  if (workspace_) stager_->Return(*workspace_);
}

DeviceStager::Workspace& DeviceStager::Pass::TakeWorkspace() {
  if (workspace_) return stager_->workspaces_[*workspace_];
  workspace_ = stager_->Take();
  Workspace& taken = stager_->workspaces_[*workspace_];
  stager_->Check(stager_->device_->Clear(
      taken.device_sums, stager_->options_.most_pieces * sizeof(uint64_t), taken.stream));
  return taken;
}

uint32_t DeviceStager::Take() {
  std::unique_lock lock(mutex_);
  uint32_t workspace = 0;
  returned_.wait(lock, [&] {
    for (workspace = 0; workspace < workspaces_.size(); ++workspace) {
      if (!workspaces_[workspace].taken) return true;
    }
    return false;
  });
  workspaces_[workspace].taken = true;
  workspaces_[workspace].routes.clear();
  return workspace;
}

void DeviceStager::Return(uint32_t workspace) {
  const std::lock_guard lock(mutex_);
  workspaces_[workspace].taken = false;
  returned_.notify_one();
}

void DeviceStager::Pass::Stage(uint32_t route, const RouteShape& shape, const std::byte* source,
                               uint64_t begin, uint64_t end, std::byte* slot, Digests digests) {
  const UsingContext current(stager_->device_->context());
  Workspace& workspace = TakeWorkspace();
  if (reinterpret_cast<uintptr_t>(source) % shape.source_element_bytes != 0) {
    stager_->Check(absl::InternalError(absl::StrCat("elements of ", shape.source_element_bytes,
                                                    " bytes do not begin at a multiple of that")));
    return;
  }
  const LeafSum digest = stager_->AddSum(workspace, route, begin, digests);
  Output output = stager_->Place(workspace, end - begin, digest, slot);
  const uint64_t element = shape.destination_element_bytes;
  const auto first = static_cast<int64_t>(begin / element);
  const auto last = static_cast<int64_t>(end / element);
  ForEachBlock(shape, first, last, Packing::kPacked, [&](const PieceBlock& block) {
    const bool all = block.rows * block.columns == static_cast<size_t>(last - first);
    stager_->StageBlock(workspace, shape, block, source + block.source_offset,
                        output.bytes + block.destination_offset, all, output);
  });
  stager_->Send(workspace, output, slot);
}

void DeviceStager::Pass::Quantise(uint32_t route, const RouteShape& shape, const Box& box,
                                  uint32_t table, const ScaleValues& values,
                                  const std::byte* source, uint64_t begin, uint64_t end,
                                  std::byte* slot, Digests digests) {
  const UsingContext current(stager_->device_->context());
  Workspace& workspace = TakeWorkspace();
  const LeafSum digest = stager_->AddSum(workspace, route, begin, digests);
  Output output = stager_->Place(workspace, end - begin, digest, slot);
  const float* const host_factors = values.FactorsAt(values.table().blocks.begins());
  ForEachQuantisedBlock(
      shape, box, values.table().block, std::numeric_limits<int64_t>::max(),
      static_cast<int64_t>(begin), static_cast<int64_t>(end), Packing::kPacked,
      [&](const QuantisedBlock& block) {
        const PieceBlock& place = block.place;
        const bool all = place.rows * place.columns == end - begin;
        const std::ptrdiff_t at = values.FactorsAt(block.blocks.begins()) - host_factors;
        stager_->Check(kernels::cuda::QuantiseRows(
            output.bytes + place.destination_offset, place.destination_pitch,
            source + place.source_offset, place.source_pitch, place.rows, place.columns, block.grid,
            stager_->tables_[table].factors + at, values.factors_pitch(), values.rule(),
            all ? output.Absorb() : LeafSum(), workspace.stream));
      });
  stager_->Send(workspace, output, slot);
}

void DeviceStager::Pass::TakePacked(const std::byte* packed, uint64_t size_bytes, std::byte* slot) {
  stager_->Check(stager_->device_->Copy(slot, packed, size_bytes, TakeWorkspace().stream));
}

void DeviceStager::Pass::DigestSource(uint32_t route, const RouteShape& shape,
                                      const std::byte* source, uint64_t begin, uint64_t end) {
  const OneSide side(shape, &Axis::source_stride, shape.source_element_bytes);
  Digest(route, side.shape, source, begin, end);
}

void DeviceStager::Pass::DigestInPlace(uint32_t route, const RouteShape& shape,
                                       const std::byte* destination, uint64_t begin, uint64_t end) {
  const OneSide side(shape, &Axis::destination_stride, shape.destination_element_bytes);
  Digest(route, side.shape, destination, begin, end);
}

void DeviceStager::Pass::Digest(uint32_t route, const RouteShape& shape, const std::byte* memory,
                                uint64_t begin, uint64_t end) {
  const UsingContext current(stager_->device_->context());
  Workspace& workspace = TakeWorkspace();
  const LeafSum digest = stager_->AddSum(workspace, route, begin, Digests::kOn);
  const uint64_t run_bytes = shape.destination_run_bytes();
  if (begin / run_bytes == (end - 1) / run_bytes) {
    ForEachDestinationRun(shape, begin, begin + 1, [&](uint64_t offset, uint64_t /*size*/) {
      stager_->Check(
          kernels::cuda::AddLeaves(digest, memory + offset, end - begin, workspace.stream));
    });
    return;
  }
  const uint64_t element = shape.destination_element_bytes;
  auto first = static_cast<int64_t>(begin / element);
  const auto last = static_cast<int64_t>(end / element);
  if (!shape.transposed()) {
    if (const std::optional<PieceBlock> block = OnlyBlock(shape, first, last)) {
      stager_->Check(kernels::cuda::AddLeavesOfRows(digest, memory + block->source_offset,
                                                    block->source_pitch, block->rows,
                                                    block->columns * element, workspace.stream));
      return;
    }
  }
  // Packed, as much at a time as the scratch memory has room for.
  while (first < last) {
    const uint64_t first_byte = static_cast<uint64_t>(first) * element;
    const uint64_t size_bytes = std::min(end - first_byte, stager_->options_.chunk_bytes);
    const auto cut = first + static_cast<int64_t>(size_bytes / element);
    const LeafSum here = {digest.sum, first_byte / kernels::kLeafBytes};
    Output output = stager_->Place(workspace, size_bytes, here, /*slot=*/nullptr);
    ForEachBlock(shape, first, cut, Packing::kPacked, [&](const PieceBlock& block) {
      stager_->StageBlock(workspace, shape, block, memory + block.source_offset,
                          output.bytes + block.destination_offset, /*all=*/false, output);
    });
    stager_->Check(kernels::cuda::AddLeaves(here, output.bytes, size_bytes, workspace.stream));
    first = cut;
  }
}

void DeviceStager::Pass::TakeFactors(uint32_t table, const ScaleValues& values) {
  const Table& to = stager_->tables_[table];
  std::copy_n(values.FactorsAt(values.table().blocks.begins()), to.blocks, to.values);
  stager_->Check(stager_->device_->Copy(to.factors, to.values, to.blocks * sizeof(float),
                                        TakeWorkspace().stream));
}

void DeviceStager::Pass::Finish(absl::FunctionRef<void(uint32_t route, uint64_t sum)> visit) {
  if (!workspace_) return;
  const Workspace& workspace = TakeWorkspace();
  stager_->Check(stager_->device_->Copy(workspace.sums, workspace.device_sums,
                                        workspace.routes.size() * sizeof(uint64_t),
                                        workspace.stream));
  stager_->Check(stager_->device_->Finish(workspace.stream));
  for (size_t i = 0; i < workspace.routes.size(); ++i)
    visit(workspace.routes[i], workspace.sums[i]);
}

LeafSum DeviceStager::AddSum(Workspace& workspace, uint32_t route, uint64_t begin,
                             Digests digests) {
  if (digests == Digests::kOff) return {};
  workspace.routes.push_back(route);
  return {workspace.device_sums + workspace.routes.size() - 1, begin / kernels::kLeafBytes};
}

DeviceStager::Output DeviceStager::Place(const Workspace& workspace, uint64_t size_bytes,
                                         LeafSum digest, std::byte* slot) {
  const absl::Span<std::byte> slots = options_.device_slots;
  const bool in_slot = slots.begin() <= slot && slot < slots.end();
  return {.bytes = in_slot ? slot : workspace.scratch, .size_bytes = size_bytes, .digest = digest};
}

// `all`: there is no other block, so the digest can be taken on the way.
void DeviceStager::StageBlock(const Workspace& workspace, const RouteShape& shape,
                              const PieceBlock& b, const std::byte* source, std::byte* destination,
                              bool all, Output& output) {
  const auto cast = CastOf(shape.transform);
  const auto element = static_cast<int64_t>(shape.source_element_bytes);
  const auto columns = static_cast<int64_t>(b.columns);
  if (!shape.transposed() && !cast) {
    Check(kernels::cuda::CopyRows(destination, b.destination_pitch, source, b.source_pitch, b.rows,
                                  b.columns * shape.destination_element_bytes,
                                  all ? output.Absorb() : LeafSum(), workspace.stream));
    return;
  }
  if (!shape.transposed() && (b.rows == 1 || b.source_pitch == columns * element)) {
    Check(kernels::cuda::CastElements(*cast, destination, source, b.rows * b.columns,
                                      all ? output.Absorb() : LeafSum(), workspace.stream));
    return;
  }
  const bool tiles = shape.transposed() && b.source_pitch == element;
  const size_t rows_at_once = tiles ? b.rows : 1;
  for (size_t r = 0; r < b.rows; r += rows_at_once) {
    const auto row = static_cast<int64_t>(r);
    const std::byte* const from = source + row * b.source_pitch;
    std::byte* const to = destination + row * b.destination_pitch;
    if (!shape.transposed()) {
      Check(kernels::cuda::CastElements(*cast, to, from, b.columns, LeafSum(), workspace.stream));
    } else if (cast) {
      Check(kernels::cuda::CastTranspose(*cast, to, b.destination_pitch, from,
                                         b.source_column_pitch, rows_at_once, b.columns,
                                         workspace.stream));
    } else {
      Check(kernels::cuda::Transpose(to, b.destination_pitch, from, b.source_column_pitch,
                                     rows_at_once, b.columns, shape.destination_element_bytes,
                                     workspace.stream));
    }
  }
}

void DeviceStager::Send(const Workspace& workspace, const Output& output, std::byte* slot) {
  if (!output.absorbed) {
    Check(
        kernels::cuda::AddLeaves(output.digest, output.bytes, output.size_bytes, workspace.stream));
  }
  if (output.bytes == slot) return;
  Check(device_->Copy(slot, output.bytes, output.size_bytes, workspace.stream));
}

// --- maxima ---

void DeviceStager::CombineMaxima(absl::Span<const Shard> shards) {
  const UsingContext current(device_->context());
  Pass pass(this);
  const Stream stream = pass.TakeWorkspace().stream;
  for (const Shard& shard : shards) QueueMaxima(shard, TableOf(shard), stream);
  pass.Finish();
  for (const Shard& shard : shards) {
    const Table& here = TableOf(shard);
    for (size_t i = 0; i < here.blocks; ++i) {
      shard.maxima[i] = kernels::CombineMaximum(shard.maxima[i], here.values[i]);
    }
  }
}

void DeviceStager::QueueMaxima(const Shard& shard, const Table& here, Stream stream) {
  const ScaleTable& table = *shard.table;
  Check(device_->Clear(here.factors, here.blocks * sizeof(float), stream));
  const int row = table.box.dimensions() - 2, column = row + 1;
  const auto element = static_cast<int64_t>(kernels::SizeBytes(shard.type));
  const kernels::BlockGrid grid = {
      .block_rows = static_cast<size_t>(table.block.rows),
      .block_columns = static_cast<size_t>(table.block.columns),
      .row_phase = static_cast<size_t>(table.box.begin(row) % table.block.rows),
      .column_phase = static_cast<size_t>(table.box.begin(column) % table.block.columns)};
  // One matrix after the other.
  int64_t matrices = 1;
  for (int d = 0; d < row; ++d) matrices *= table.box.extent(d);
  const int64_t blocks_of_matrix = table.blocks.extent(row) * table.blocks.extent(column);
  for (int64_t m = 0; m < matrices; ++m) {
    int64_t offset = 0, rest = m;
    for (int d = row; d-- > 0;) {
      offset += rest % table.box.extent(d) * table.source_strides[static_cast<size_t>(d)];
      rest /= table.box.extent(d);
    }
    Check(kernels::cuda::CombineMaxima(
        here.factors + m * blocks_of_matrix, table.blocks.extent(column),
        shard.source + offset * element, shard.type, shard.via,
        table.source_strides[static_cast<size_t>(row)] * element,
        static_cast<size_t>(table.box.extent(row)), static_cast<size_t>(table.box.extent(column)),
        grid, stream));
  }
  Check(device_->Copy(here.values, here.factors, here.blocks * sizeof(float), stream));
}

// By way of the host: it is rare.
uint64_t DeviceStager::CountNonFinite(const std::byte* data, kernels::Wide type,
                                      int64_t pitch_bytes, size_t rows, size_t columns) {
  const UsingContext current(device_->context());
  Pass pass(this);
  const Workspace& workspace = pass.TakeWorkspace();
  const size_t element = kernels::SizeBytes(type);
  const size_t width = std::min<size_t>(columns, options_.chunk_bytes / element);
  const size_t height = std::min<size_t>(rows, options_.chunk_bytes / (width * element));
  std::vector<std::byte> packed(width * height * element);
  uint64_t found = 0;
  for (size_t r = 0; r < rows; r += height) {
    const size_t row_count = std::min(height, rows - r);
    for (size_t c = 0; c < columns; c += width) {
      const size_t count = std::min(width, columns - c);
      const auto pitch = static_cast<int64_t>(count * element);
      const std::byte* const from =
          data + static_cast<int64_t>(r) * pitch_bytes + static_cast<int64_t>(c * element);
      Check(kernels::cuda::CopyRows(workspace.scratch, pitch, from, pitch_bytes, row_count,
                                    count * element, LeafSum(), workspace.stream));
      Check(device_->Copy(packed.data(), workspace.scratch, row_count * count * element,
                          workspace.stream));
      if (!Check(device_->Finish(workspace.stream))) return found;
      found += kernels::CountNonFinite(packed.data(), type, pitch, row_count, count);
    }
  }
  return found;
}

}  // namespace waybill
