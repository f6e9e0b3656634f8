// SPDX-License-Identifier: Apache-2.0

// The encoding of what changed in a chunk once more, written as README.md reads. Slow; tests
// compare the fast encoder and decoder with it.
#ifndef WAYBILL_CORE_CHANGE_REFERENCE_CODEC_H_
#define WAYBILL_CORE_CHANGE_REFERENCE_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace waybill::reference {

using Bytes = std::vector<uint8_t>;

// Returns the encoding of a chunk whose elements have `element_bytes` bytes.
Bytes EncodeChanges(const Bytes& newest, const Bytes& before, size_t element_bytes);

// Returns the newest version of the chunk, or nullopt where a decoder rejects the encoding.
std::optional<Bytes> ApplyChanges(const Bytes& encoding, const Bytes& before, size_t element_bytes);

}  // namespace waybill::reference

#endif  // WAYBILL_CORE_CHANGE_REFERENCE_CODEC_H_
