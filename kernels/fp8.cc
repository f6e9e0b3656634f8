#include "kernels/fp8.h"

#include <algorithm>
#include <cstdint>

#include "kernels/dequantise_row.h"
#include "kernels/quantise_row.h"
#include "kernels/quantise_rule.h"

namespace waybill::kernels {

// A cast is a quantisation by 1, which changes no value and no NaN's sign.
static constexpr float kOne = 1;

void CastToFp8(void* dst, Narrow to, const void* src, Wide from, size_t count, Stores stores,
               DigestStream* digest) {
  constexpr size_t kPieceCount = kLeafBytes;
  alignas(64) uint8_t piece[kPieceCount];
  uint8_t* out = static_cast<uint8_t*>(dst);
  const std::byte* in = static_cast<const std::byte*>(src);
  const QuantiseRule rule{from, from, to, Division::kMultiplyByReciprocal};
  if (digest == nullptr && stores == Stores::kCached) {
    if (count != 0) QuantiseRow(out, in, {count, count, count}, &kOne, rule);
    return;
  }
  while (count != 0) {
    const size_t n = std::min(count, kPieceCount);
    QuantiseRow(piece, in, {n, n, n}, &kOne, rule);
    if (digest == nullptr) {
      Copy(out, piece, n, stores);
    } else {
      digest->AbsorbCopy(out, piece, n, stores);
    }
    out += n;
    in += n * SizeBytes(from);
    count -= n;
  }
}

void CastFromFp8(void* dst, Wide to, const void* src, Narrow from, size_t count, Stores stores,
                 DigestStream* digest) {
  alignas(64) std::byte piece[kLeafBytes];
  const size_t piece_count = sizeof(piece) / SizeBytes(to);
  std::byte* out = static_cast<std::byte*>(dst);
  const uint8_t* in = static_cast<const uint8_t*>(src);
  PreparedScale one;
  PrepareScales(&one, &kOne, 1, to, from);
  if (digest == nullptr && stores == Stores::kCached) {
    if (count != 0) DequantiseRow(out, to, in, from, {count, count, count}, &one);
    return;
  }
  while (count != 0) {
    const size_t n = std::min(count, piece_count);
    DequantiseRow(piece, to, in, from, {n, n, n}, &one);
    if (digest == nullptr) {
      Copy(out, piece, n * SizeBytes(to), stores);
    } else {
      digest->AbsorbCopy(out, piece, n * SizeBytes(to), stores);
    }
    out += n * SizeBytes(to);
    in += n;
    count -= n;
  }
}

}  // namespace waybill::kernels
