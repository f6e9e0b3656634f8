// SPDX-License-Identifier: Apache-2.0

// Encodes what changed between two BF16 versions of a checkpoint, and compares the size with the
// entropy.
//
//     bazel run -c opt //testing/bench:changes -- BEFORE.safetensors NEWEST.safetensors...
//
// Each file is compared with the one before it. Tensors are cut into chunks of at most 4 MiB. The
// entropy is that of independent elements: of which ones changed, and of the signed distances of
// those in units in the last place.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "core/base/status.h"
#include "core/change/change_decoder.h"
#include "core/change/change_encoder.h"
#include "core/change/chunk_encoding.h"
#include "core/layout/safetensors.h"
#include "core/tensor/dtype.h"
#include "kernels/copy.h"

namespace waybill {
namespace {

struct Counts {
  size_t elements = 0;
  std::map<int32_t, size_t> distances;  // The numbers of changed elements, by distance.
  std::map<ChunkKind, size_t> chunks;
  size_t encoded_bytes = 0;
};

double Entropy(const std::vector<size_t>& counts) {
  double total = 0, bits = 0;
  for (const size_t count : counts) total += static_cast<double>(count);
  for (const size_t count : counts) {
    const double share = static_cast<double>(count) / total;
    if (count != 0) bits -= share * std::log2(share);
  }
  return bits;
}

void CountDistances(absl::Span<const std::byte> newest, absl::Span<const std::byte> before,
                    Counts& counts) {
  for (size_t at = 0; at < newest.size(); at += 2) {
    uint16_t now, then;
    std::memcpy(&now, newest.data() + at, 2);
    std::memcpy(&then, before.data() + at, 2);
    ++counts.elements;
    if (now == then) continue;
    ++counts.distances[static_cast<int16_t>(Order(now)) - static_cast<int16_t>(Order(then))];
  }
}

// Encodes a chunk, and checks that it comes back.
absl::Status AddChunk(absl::Span<const std::byte> newest, absl::Span<const std::byte> before,
                      Counts& counts) {
  std::vector<std::byte> out(EncodingRoomBytes(newest.size())), target(newest.size());
  WAYBILL_ASSIGN_OR_RETURN(const EncodedChunk encoded,
                           EncodeChanges(newest, before, ElementWidth::kTwo, absl::MakeSpan(out)));
  WAYBILL_RETURN_IF_ERROR(ApplyChanges(absl::MakeConstSpan(out).first(encoded.size_bytes), before,
                                       ElementWidth::kTwo, absl::MakeSpan(target),
                                       kernels::Stores::kCached));
  if (std::memcmp(target.data(), newest.data(), newest.size()) != 0) {
    return absl::InternalError("a chunk did not come back");
  }
  ++counts.chunks[encoded.kind];
  counts.encoded_bytes += encoded.size_bytes;
  CountDistances(newest, before, counts);
  return absl::OkStatus();
}

absl::Status Compare(const SafetensorsFile& newest, const SafetensorsFile& before) {
  std::map<std::string, const CheckpointTensor*> by_name;
  for (const CheckpointTensor& tensor : before.tensors()) by_name[tensor.name] = &tensor;
  Counts counts;
  for (const CheckpointTensor& tensor : newest.tensors()) {
    const auto found = by_name.find(tensor.name);
    if (tensor.dtype != Dtype::kBf16 || found == by_name.end() ||
        found->second->dtype != Dtype::kBf16 || found->second->data.size() != tensor.data.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", tensor.name, "\" is not BF16 of the same size in both files"));
    }
    for (size_t at = 0; at < tensor.data.size(); at += kMostChunkBytes) {
      const auto chunk = [at](const CheckpointTensor& of) {
        return of.data.subspan(at, kMostChunkBytes);
      };
      WAYBILL_RETURN_IF_ERROR(AddChunk(chunk(tensor), chunk(*found->second), counts));
    }
  }
  std::vector<size_t> distance_counts;
  size_t changed = 0;
  for (const auto& [distance, count] : counts.distances) {
    distance_counts.push_back(count);
    changed += count;
  }
  const double elements = static_cast<double>(counts.elements);
  const double share = static_cast<double>(changed) / elements;
  const double entropy =
      (Entropy({changed, counts.elements - changed}) + share * Entropy(distance_counts)) / 16;
  const double size = static_cast<double>(counts.encoded_bytes) / (2 * elements);
  absl::PrintF("%9.3f %12.3f %10.3f %9.3f %11d %9d %6d\n", 100 * share, 100 * entropy, 100 * size,
               size / entropy, counts.chunks[ChunkKind::kUnchanged],
               counts.chunks[ChunkKind::kElements], counts.chunks[ChunkKind::kWhole]);
  return absl::OkStatus();
}

absl::Status Run(absl::Span<char* const> paths) {
  if (paths.size() < 2) {
    return absl::InvalidArgumentError("usage: changes BEFORE.safetensors NEWEST.safetensors...");
  }
  absl::PrintF("%9s %12s %10s %9s %11s %9s %6s\n", "changed %", "entropy %", "size %", "/entropy",
               "unchanged", "elements", "whole");
  WAYBILL_ASSIGN_OR_RETURN(SafetensorsFile before, SafetensorsFile::Open(paths[0]));
  for (char* const path : paths.subspan(1)) {
    WAYBILL_ASSIGN_OR_RETURN(SafetensorsFile newest, SafetensorsFile::Open(path));
    WAYBILL_RETURN_IF_ERROR(While(path, Compare(newest, before)));
    before = std::move(newest);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) {
  const absl::Status status =
      waybill::Run(absl::MakeConstSpan(argv, static_cast<size_t>(argc)).subspan(1));
  if (status.ok()) return 0;
  std::cerr << status.message() << "\n";
  return 1;
}
