// SPDX-License-Identifier: Apache-2.0

// Completes a chunk of weights from the version before it and what changed since. README.md has the
// encoding.
#ifndef WAYBILL_CORE_CHANGE_CHANGE_DECODER_H_
#define WAYBILL_CORE_CHANGE_CHANGE_DECODER_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/change/chunk_encoding.h"
#include "kernels/copy.h"

namespace waybill {

// Makes `target` the newest version of a chunk: copies `before`, and applies the changes of
// `encoding` block by block while the block is in the cache. `target` may be the memory of `before`
// itself; then only changed elements are written. Otherwise the two must not overlap. With
// kStreaming, memory other than that of `before` is written past the cache: call StreamFence()
// before telling anybody. [any thread]
//
// `encoding` may be any bytes: nothing outside of `target` is written. An encoding of other
// versions may give wrong bytes, which the digest detects. Needs 40 KiB of stack and no other
// memory, but for the message of an error.
//
// kInvalidArgument: the chunk is not allowed (see CheckChunk()), or README.md has decoders reject
// the encoding. `target` then has unspecified bytes, and so has `before` if it is the same memory.
absl::Status ApplyChanges(absl::Span<const std::byte> encoding, absl::Span<const std::byte> before,
                          ElementWidth width, absl::Span<std::byte> target, kernels::Stores stores);

}  // namespace waybill

#endif  // WAYBILL_CORE_CHANGE_CHANGE_DECODER_H_
