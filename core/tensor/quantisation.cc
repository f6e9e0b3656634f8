// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/quantisation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace waybill {
namespace {

struct NamedRow {
  absl::string_view name;
  Quantisation quantisation;
};

constexpr NamedRow kNamed[] = {
    {"fp8-block", {}},
    {"fp8-row", {.epsilon = 1e-10f, .block_rows = 1, .block_columns = 0}},
    {"fp8-tensor", {.epsilon = 1e-10f, .block_rows = 0, .block_columns = 0}},
    {"mxfp8",
     {.scale_dtype = Dtype::kE8m0,
      .rounding = ScaleRounding::kFloorExponent,
      .epsilon = 0,
      .block_rows = 1,
      .block_columns = 32}},
};

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `box` with its last two dimensions mapped.
template <typename Map>
Box MapMatrix(const Box& box, Map map) {
  Box mapped = box;
  for (int d = std::max(0, box.dimensions() - 2); d < box.dimensions(); ++d) {
    const auto [begin, end] = map(d, d == box.dimensions() - 1);
    mapped.Set(d, begin, end);
  }
  return mapped;
}

std::string BlockName(uint32_t extent) { return extent == 0 ? "all" : absl::StrCat(extent); }

}  // namespace

std::vector<absl::string_view> QuantisationNames() {
  std::vector<absl::string_view> names = {"bf16"};
  for (const NamedRow& row : kNamed) names.push_back(row.name);
  return names;
}

absl::StatusOr<Quantisation> NamedQuantisation(absl::string_view name) {
  for (const NamedRow& row : kNamed) {
    if (row.name == name) return row.quantisation;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "format \"", name, "\" is not known; there are: ", absl::StrJoin(QuantisationNames(), ", ")));
}

absl::Status CheckQuantisation(const Quantisation& q) {
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("quantisation ", ToString(q), ": ", why...));
  };
  if (q.dtype != Dtype::kF8E4m3 && q.dtype != Dtype::kF8E5m2) {
    return refuse("elements become F8_E4M3 or F8_E5M2, not ", Name(q.dtype));
  }
  if (q.from != Dtype::kBf16 && q.from != Dtype::kF16 && q.from != Dtype::kF32) {
    return refuse("elements are rounded to BF16, F16 or F32 first, not to ", Name(q.from));
  }
  if (q.scale_dtype != Dtype::kF32 && q.scale_dtype != Dtype::kE8m0) {
    return refuse("scales are F32 or F8_E8M0, not ", Name(q.scale_dtype));
  }
  if (q.rounding < ScaleRounding::kNone || q.rounding > ScaleRounding::kFloorExponent) {
    return refuse("scale rounding ", static_cast<int>(q.rounding), " is not known");
  }
  if (q.division < Division::kTimesReciprocal || q.division > Division::kDivide) {
    return refuse("division ", static_cast<int>(q.division), " is not known");
  }
  if (q.scale_dtype == Dtype::kE8m0 && q.rounding == ScaleRounding::kNone) {
    return refuse("F8_E8M0 holds powers of two, so the scale must be rounded to one");
  }
  if (q.rounding != ScaleRounding::kNone && q.division == Division::kTimesLargestOverMagnitude) {
    return refuse("elements are divided by the unrounded scale, and the rounded one is stored");
  }
  if (!(q.epsilon >= 0) || q.epsilon > 1) return refuse("epsilon ", q.epsilon, " is not in [0, 1]");
  if (q.scale_rows != 0 && (q.block_rows == 0 || q.block_rows % q.scale_rows != 0)) {
    return refuse("scales for ", q.scale_rows, " rows do not divide a block of ",
                  BlockName(q.block_rows));
  }
  if (q.scale_columns != 0 && (q.block_columns == 0 || q.block_columns % q.scale_columns != 0)) {
    return refuse("scales for ", q.scale_columns, " columns do not divide a block of ",
                  BlockName(q.block_columns));
  }
  return absl::OkStatus();
}

Extents2 BlockExtents(const Quantisation& q, absl::Span<const int64_t> shape) {
  const int64_t rows = shape[shape.size() - 2], columns = shape[shape.size() - 1];
  return {q.block_rows != 0 ? int64_t{q.block_rows} : std::max<int64_t>(rows, 1),
          q.block_columns != 0 ? int64_t{q.block_columns} : std::max<int64_t>(columns, 1)};
}

Extents2 ScaleExtents(const Quantisation& q, absl::Span<const int64_t> shape) {
  const Extents2 block = BlockExtents(q, shape);
  return {q.scale_rows != 0 ? int64_t{q.scale_rows} : block.rows,
          q.scale_columns != 0 ? int64_t{q.scale_columns} : block.columns};
}

std::vector<int64_t> GridShape(absl::Span<const int64_t> shape, Extents2 cell) {
  std::vector<int64_t> grid(shape.begin(), shape.end());
  grid[grid.size() - 2] = CeilDivide(grid[grid.size() - 2], cell.rows);
  grid[grid.size() - 1] = CeilDivide(grid[grid.size() - 1], cell.columns);
  return grid;
}

Box CellsMeeting(const Box& box, Extents2 cell) {
  return MapMatrix(box, [&](int d, bool is_column) {
    const int64_t extent = is_column ? cell.columns : cell.rows;
    return std::pair(box.begin(d) / extent, CeilDivide(box.end(d), extent));
  });
}

Box CellsBeginningIn(const Box& box, Extents2 cell) {
  return MapMatrix(box, [&](int d, bool is_column) {
    const int64_t extent = is_column ? cell.columns : cell.rows;
    return std::pair(CeilDivide(box.begin(d), extent), CeilDivide(box.end(d), extent));
  });
}

Box CellsWithin(const Box& box, Extents2 cell, absl::Span<const int64_t> shape) {
  return MapMatrix(box, [&](int d, bool is_column) {
    const int64_t extent = is_column ? cell.columns : cell.rows;
    const bool to_the_end = box.end(d) == shape[static_cast<size_t>(d)];
    return std::pair(CeilDivide(box.begin(d), extent),
                     to_the_end ? CeilDivide(box.end(d), extent) : box.end(d) / extent);
  });
}

Box ElementsOf(const Box& cells, Extents2 cell, absl::Span<const int64_t> shape) {
  return MapMatrix(cells, [&](int d, bool is_column) {
    const int64_t extent = is_column ? cell.columns : cell.rows;
    return std::pair(cells.begin(d) * extent,
                     std::min(cells.end(d) * extent, shape[static_cast<size_t>(d)]));
  });
}

Box BlocksOfCells(const Box& cells, Extents2 block, Extents2 cell) {
  return CellsMeeting(cells, {block.rows / cell.rows, block.columns / cell.columns});
}

Box CellsOfBlocks(const Box& blocks, Extents2 block, Extents2 cell,
                  absl::Span<const int64_t> shape) {
  const Extents2 ratio = {block.rows / cell.rows, block.columns / cell.columns};
  return ElementsOf(blocks, ratio, GridShape(shape, cell));
}

std::string ToString(const Quantisation& q) {
  std::string text = absl::StrCat(Name(q.dtype), " by ", BlockName(q.block_rows), "x",
                                  BlockName(q.block_columns), " with ", Name(q.scale_dtype));
  if (q.scale_rows != 0 || q.scale_columns != 0) {
    absl::StrAppend(&text, " ", BlockName(q.scale_rows != 0 ? q.scale_rows : q.block_rows), "x",
                    BlockName(q.scale_columns != 0 ? q.scale_columns : q.block_columns));
  }
  absl::StrAppend(&text, q.stores_reciprocal ? " reciprocal scales" : " scales");
  return text;
}

}  // namespace waybill
