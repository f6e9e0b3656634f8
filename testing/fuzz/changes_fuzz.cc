// SPDX-License-Identifier: Apache-2.0

// Encodings of changed chunks, as a receiver gets them from whoever plays the sender. The first
// byte of an input chooses the element width and the size of the chunk.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/change/change_decoder.h"
#include "core/change/change_encoder.h"
#include "core/change/chunk_encoding.h"
#include "core/change/reference_codec.h"
#include "kernels/copy.h"
#include "testing/fuzz/fuzz_target.h"

namespace waybill::fuzz {
namespace {

using reference::Bytes;

constexpr ElementWidth kWidths[] = {ElementWidth::kOne, ElementWidth::kTwo, ElementWidth::kFour};
// Less than a block, a piece that is streamed and a bit, two blocks.
constexpr size_t kElementCounts[] = {7, 2500, 20000};

struct Choice {
  ElementWidth width;
  size_t chunk_bytes;
};

Choice Choose(uint8_t byte) {
  const ElementWidth width = kWidths[byte % 3];
  return {width, kElementCounts[byte / 3 % 3] * static_cast<size_t>(width)};
}

Bytes Before(size_t size_bytes) {
  Bytes bytes(size_bytes);
  for (size_t i = 0; i < size_bytes; ++i) {
    bytes[i] = static_cast<uint8_t>(i * 0x9e3779b97f4a7c15 >> 56);
  }
  return bytes;
}

absl::Span<const std::byte> ToSpan(const Bytes& bytes) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
}

// A chunk between bytes that nobody may write.
class Target {
 public:
  explicit Target(const Bytes& chunk) : bytes_(kGuardBytes, kGuard), chunk_bytes_(chunk.size()) {
    bytes_.insert(bytes_.end(), chunk.begin(), chunk.end());
    bytes_.insert(bytes_.end(), kGuardBytes, kGuard);
  }

  absl::Span<std::byte> chunk() {
    return absl::MakeSpan(reinterpret_cast<std::byte*>(bytes_.data()) + kGuardBytes, chunk_bytes_);
  }

  bool Holds(const Bytes& chunk) const {
    return std::memcmp(bytes_.data() + kGuardBytes, chunk.data(), chunk_bytes_) == 0;
  }

  bool GuardsHold() const {
    const Bytes guard(kGuardBytes, kGuard);
    return std::memcmp(bytes_.data(), guard.data(), kGuardBytes) == 0 &&
           std::memcmp(bytes_.data() + kGuardBytes + chunk_bytes_, guard.data(), kGuardBytes) == 0;
  }

 private:
  static constexpr size_t kGuardBytes = 256;
  static constexpr uint8_t kGuard = 0xa5;
  Bytes bytes_;
  size_t chunk_bytes_;
};

Bytes Encode(const Bytes& newest, const Bytes& before, ElementWidth width) {
  Bytes out(EncodingRoomBytes(newest.size()));
  const auto encoded =
      EncodeChanges(ToSpan(newest), ToSpan(before), width,
                    absl::MakeSpan(reinterpret_cast<std::byte*>(out.data()), out.size()));
  Require(encoded.ok(), "a chunk can be encoded");
  out.resize(encoded->size_bytes);
  return out;
}

void CheckRoundTrip(const Bytes& newest, const Bytes& before, ElementWidth width) {
  const Bytes encoding = Encode(newest, before, width);
  Require(encoding == reference::EncodeChanges(newest, before, static_cast<size_t>(width)),
          "an encoder makes what the reference makes");
  Target target(Bytes(before.size(), 0));
  Require(ApplyChanges(ToSpan(encoding), ToSpan(before), width, target.chunk(),
                       kernels::Stores::kCached)
                  .ok() &&
              target.Holds(newest),
          "what was encoded comes back");
}

void CheckDecoder(const Bytes& encoding, const Bytes& before, ElementWidth width) {
  const auto expected = reference::ApplyChanges(encoding, before, static_cast<size_t>(width));
  for (const auto stores : {kernels::Stores::kCached, kernels::Stores::kStreaming}) {
    Target target(Bytes(before.size(), 0));
    const bool ok =
        ApplyChanges(ToSpan(encoding), ToSpan(before), width, target.chunk(), stores).ok();
    Require(target.GuardsHold(), "nothing outside of the target is written");
    Require(ok == expected.has_value(), "a decoder rejects what the reference rejects");
    Require(!ok || target.Holds(*expected), "a decoder makes what the reference makes");
  }
  Target target(before);
  const bool ok = ApplyChanges(ToSpan(encoding), target.chunk(), width, target.chunk(),
                               kernels::Stores::kCached)
                      .ok();
  Require(target.GuardsHold() && ok == expected.has_value(), "the same holds in place");
  if (!ok) return;
  Require(target.Holds(*expected), "a chunk is completed in place");
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (uint8_t first = 0; first < 9; ++first) {
    const Choice choice = Choose(first);
    const Bytes before = Before(choice.chunk_bytes);
    for (const size_t step : {1, 3, 97, 5000}) {
      Bytes newest = before;
      for (size_t i = 0; i < newest.size(); i += step) newest[i] ^= i % 5 == 0 ? 0x41 : 1;
      const Bytes encoding = Encode(newest, before, choice.width);
      seeds.push_back(std::string(1, static_cast<char>(first)) +
                      std::string(encoding.begin(), encoding.end()));
    }
  }
  return seeds;
}

}  // namespace waybill::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace waybill;
  if (size == 0) return 0;
  const fuzz::Choice choice = fuzz::Choose(data[0]);
  const fuzz::Bytes before = fuzz::Before(choice.chunk_bytes);
  const fuzz::Bytes input(data + 1, data + size);
  fuzz::CheckDecoder(input, before, choice.width);
  // The same bytes as the beginning of a version.
  fuzz::Bytes newest = before;
  std::copy_n(input.begin(), std::min(input.size(), newest.size()), newest.begin());
  fuzz::CheckRoundTrip(newest, before, choice.width);
  return 0;
}
