// SPDX-License-Identifier: Apache-2.0

#include "core/engine/chunk_changes.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/change/change_decoder.h"
#include "core/change/change_encoder.h"
#include "core/change/chunk_encoding.h"
#include "core/stage/stage_piece.h"
#include "kernels/copy.h"
#include "kernels/digest.h"

namespace waybill {
namespace {

using kernels::DigestStream;
using kernels::Stores;

constexpr uint64_t kSizeBytes = sizeof(uint32_t);

// Memory of a thread.
struct Scratch {
  std::vector<std::byte> newest;
  std::vector<std::byte> before;
  std::vector<std::byte> encoding;

  static Scratch& OfThisThread(uint64_t chunk_bytes) {
    thread_local Scratch scratch;
    if (scratch.newest.size() < chunk_bytes) {
      scratch.newest.resize(chunk_bytes);
      scratch.before.resize(chunk_bytes);
      scratch.encoding.resize(EncodingRoomBytes(chunk_bytes));
    }
    return scratch;
  }
};

// Returns the widest elements of which all pieces consist; both ends find the same.
ElementWidth WidthOf(const RouteTable& routes, absl::Span<const Piece> pieces) {
  uint32_t bytes = 4;
  for (const Piece& piece : pieces) {
    const uint32_t element = routes.shape(piece.route).destination_element_bytes;
    while (element % bytes != 0) bytes /= 2;
  }
  return static_cast<ElementWidth>(bytes);
}

// Calls visit(place, size_bytes) for each contiguous run of the pieces in `regions`, in order.
template <typename Visit>
void ForEachRun(const RouteTable& routes, absl::Span<const Piece> pieces, Regions regions,
                Visit visit) {
  for (const Piece& piece : pieces) {
    std::byte* const first = regions[routes.destination_region(piece.route)].data() +
                             routes.destination_offset(piece.route);
    ForEachDestinationRun(routes.shape(piece.route), piece.begin, piece.end,
                          [&](uint64_t offset, uint64_t size) { visit(first + offset, size); });
  }
}

// Copies the first bytes of a chunk to `out`, as many as it has.
void Gather(const RouteTable& routes, absl::Span<const Piece> pieces, Regions regions,
            absl::Span<std::byte> out) {
  ForEachRun(routes, pieces, regions, [&](const std::byte* place, uint64_t size) {
    const uint64_t now = std::min<uint64_t>(size, out.size());
    kernels::Copy(out.data(), place, now, Stores::kCached);
    out.remove_prefix(now);
  });
}

// Returns true if the elements of a route lie at the source one after the other as they are sent.
bool IsDense(const RouteShape& shape) {
  auto stride = static_cast<int64_t>(shape.source_element_bytes);
  for (auto axis = shape.axes.rbegin(); axis != shape.axes.rend(); ++axis) {
    if (axis->extent > 1 && axis->source_stride != stride) return false;
    stride *= axis->extent;
  }
  return shape.transform == Transform::kNone;
}

// Returns the bytes of a chunk, which are packed in `room` unless they lie so in `memory`.
absl::Span<const std::byte> Pack(const RouteTable& routes, absl::Span<const Piece> pieces,
                                 absl::Span<const MemorySpan> memory, absl::Span<std::byte> room) {
  std::byte* at = room.data();
  for (const Piece& piece : pieces) {
    const std::byte* const source =
        memory[routes.source_region(piece.route)].data + routes.source_offset(piece.route);
    if (pieces.size() == 1 && IsDense(routes.shape(piece.route))) {
      return {source + piece.begin, room.size()};
    }
    StagePacked(routes.shape(piece.route), source, piece.begin, piece.end, at, Digests::kOff);
    at += piece.size_bytes();
  }
  return room;
}

}  // namespace

uint64_t StageChanges(const RouteTable& routes, absl::Span<const Piece> pieces,
                      absl::Span<const MemorySpan> newest, absl::Span<const MemorySpan> before,
                      absl::Span<std::byte> slot, DigestSink digested) {
  Scratch& scratch = Scratch::OfThisThread(slot.size());
  const auto now = Pack(routes, pieces, newest, absl::MakeSpan(scratch.newest).first(slot.size()));
  const auto then = Pack(routes, pieces, before, absl::MakeSpan(scratch.before).first(slot.size()));
  const absl::StatusOr<EncodedChunk> encoded =
      EncodeChanges(now, then, WidthOf(routes, pieces), absl::MakeSpan(scratch.encoding));
  uint64_t size_bytes = slot.size();
  // A chunk that is too long to be encoded travels whole.
  if (encoded.ok() && encoded->kind != ChunkKind::kWhole) {
    size_bytes = std::min(size_bytes, kSizeBytes + encoded->size_bytes);
  }
  if (size_bytes < slot.size()) {
    const auto encoded_bytes = static_cast<uint32_t>(encoded->size_bytes);
    std::memcpy(slot.data(), &encoded_bytes, kSizeBytes);
    std::memcpy(slot.data() + kSizeBytes, scratch.encoding.data(), encoded_bytes);
  } else {
    std::memcpy(slot.data(), now.data(), slot.size());
  }
  // The newest bytes are likely in the cache.
  const std::byte* at = now.data();
  for (const Piece& piece : pieces) {
    DigestStream digest(piece.begin / kernels::kLeafBytes);
    digest.Absorb(at, piece.size_bytes());
    digested(piece.route, digest.sum());
    at += piece.size_bytes();
  }
  return size_bytes;
}

absl::Status TakeChanges(const RouteTable& routes, absl::Span<const Piece> pieces,
                         uint64_t size_bytes, Regions base, Regions arrived, DigestSink digested) {
  const auto wrong = [](auto... what) {
    return absl::DataLossError(absl::StrCat("what changed in a chunk: ", what...));
  };
  std::byte head[kSizeBytes] = {};
  Gather(routes, pieces, arrived, absl::MakeSpan(head));
  uint32_t encoded_bytes = 0;
  std::memcpy(&encoded_bytes, head, kSizeBytes);
  if (kSizeBytes + encoded_bytes > size_bytes) {
    return wrong("an encoding of ", encoded_bytes, " bytes does not fit into its ", size_bytes);
  }
  Scratch& scratch = Scratch::OfThisThread(size_bytes);
  const auto encoding = absl::MakeSpan(scratch.encoding).first(kSizeBytes + encoded_bytes);
  Gather(routes, pieces, arrived, encoding);
  const auto chunk = absl::MakeSpan(scratch.before).first(size_bytes);
  Gather(routes, pieces, base, chunk);
  const absl::Status status = ApplyChanges(encoding.subspan(kSizeBytes), chunk,
                                           WidthOf(routes, pieces), chunk, Stores::kCached);
  if (!status.ok()) return wrong(status.message());

  const std::byte* at = chunk.data();
  for (const Piece& piece : pieces) {
    DigestStream digest(piece.begin / kernels::kLeafBytes);
    ForEachRun(routes, {&piece, 1}, arrived, [&](std::byte* place, uint64_t size) {
      digest.AbsorbCopy(place, at, size, Stores::kStreaming);
      at += size;
    });
    digested(piece.route, digest.sum());
  }
  kernels::StreamFence();
  return absl::OkStatus();
}

}  // namespace waybill
