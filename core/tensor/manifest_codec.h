// SPDX-License-Identifier: Apache-2.0

// A manifest as bytes, for the control channel and for files.
#ifndef WAYBILL_CORE_TENSOR_MANIFEST_CODEC_H_
#define WAYBILL_CORE_TENSOR_MANIFEST_CODEC_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/tensor/manifest.h"

namespace waybill {

// The same manifest gives the same bytes on every host.
std::string EncodeManifest(const Manifest& manifest);

// kInvalidArgument: not a manifest, columns of unequal lengths, or a schema that is not known. What
// comes back still has to pass CheckManifest().
absl::StatusOr<Manifest> DecodeManifest(absl::string_view bytes);

enum class PartKind : uint32_t { kTensors = 1, kHoldings = 2 };

// Names a part of a manifest by what it is and the SHA-256 of its bytes.
struct PartId {
  PartKind kind = PartKind::kTensors;
  std::string hash;

  auto operator<=>(const PartId&) const = default;
};

// The same in parts. Ranks share parts, so a receiver may ask for those that it lacks only.
struct ManifestHead {
  std::string host;
  std::string rack;
  std::vector<Nic> nics;
  std::string tensors;  // The hashes of the parts.
  std::string holdings;
};
struct EncodedManifest {
  std::string head;
  std::string tensors;
  std::string holdings;
};
EncodedManifest EncodeInParts(const Manifest& manifest);

// The most that a part may have. A rank of Kimi-K2 in FP8 that has a region of its own for each of
// 280,000 tensors needs less than a half of it.
inline constexpr size_t kMostPartBytes = size_t{48} << 20;
inline constexpr size_t kMostNumbersOfPart = 10'000'000;

// Return what the parts hold; all errors as DecodeManifest() has them, and kInvalidArgument if a
// part has more than it may. Tensors are a manifest that
// has nothing else. Holdings are added to a copy of it: whatever has the same tensors shares them.
absl::StatusOr<ManifestHead> DecodeHead(absl::string_view bytes);
absl::StatusOr<Manifest> DecodeTensors(absl::string_view bytes);
absl::StatusOr<Manifest> DecodeHoldings(absl::string_view bytes, Manifest tensors);

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_MANIFEST_CODEC_H_
