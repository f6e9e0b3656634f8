// SPDX-License-Identifier: Apache-2.0

// Quantises BF16s by a table of their mantissas, on targets that can look up bytes. Compiled for
// each target of the file that includes this; such a target defines KERNELS_BF16_TABLE.
//
// Within one binade the code depends only on the 7 bits of the mantissa. In the next binade it is
// one binade of codes higher, as long as both are normal numbers of the narrow type. So 128 codes
// for each block suffice. Elements outside of that range that are not 0 take the general path.
//
// VBMI looks up in all 128 codes. Other targets look up in 16: two codes begin at least 7 mantissas
// apart, so 8 consecutive mantissas have at most one step, by 1. A second table says where it is.

#if defined(KERNELS_BF16_TABLE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KERNELS_BF16_TABLE_INL_H_
#undef KERNELS_BF16_TABLE_INL_H_
#else
#define KERNELS_BF16_TABLE_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/copy.h"
#include "kernels/elements.h"
#include "kernels/prepared_block.h"
#include "kernels/wide_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {

#undef KERNELS_BF16_TABLE
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX2
#define KERNELS_BF16_TABLE

inline constexpr size_t kTableVector = 64;  // The number of elements that one lookup handles.

// The limits of the exponents of a narrow type. For x in one binade the quotient or product lies
// between 2^e and 2^(e+2); the table is for e = 0.
template <Narrow to>
struct TableLayout {
  static constexpr int kMantissaBits = to == Narrow::kE4m3 ? 3 : 2;
  static constexpr int kLeastExponent = to == Narrow::kE4m3 ? -6 : -14;
  // From this exponent on products may be at least half of the smallest subnormal, so not 0.
  static constexpr int kFirstRare = kLeastExponent - kMantissaBits - 2;
  // This many binades higher, all products are normal.
  static constexpr int kRareCount = kMantissaBits + 2;
  // Added to e. If the sum is negative, the code is 0.
  static constexpr int kOffset = 3 - kLeastExponent;
  static constexpr int kLargestCode = to == Narrow::kE4m3 ? 0x7e : 0x7b;
  // The excess of sums of codes and binades, so that sums that saturate give the largest code.
  static constexpr int kExcess = 255 - kLargestCode;
  static constexpr int kTableExcess = kExcess - (kOffset << kMantissaBits);
  // Beyond the largest code, and small enough for a byte.
  static constexpr int kMostBinades = to == Narrow::kE4m3 ? 24 : 40;
};

// Fills the tables by calling `quantise`(codes, 128 BF16s), unless the factor is too large, too
// small or not finite.
template <Narrow to, bool divide, class Quantise>
HWY_INLINE void PrepareTable(PreparedBlock& block, Quantise quantise) {
  using L = TableLayout<to>;
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(block.factor) >> 23) - 127;
  block.has_table = exponent >= -100 && exponent <= 100;
  if (!block.has_table) return;
  const int reference = divide ? 127 + exponent + 1 : 127 - exponent;
  std::memset(block.first_rare, reference + L::kFirstRare, sizeof(block.first_rare));
  std::memset(block.zero_below, reference - L::kOffset, sizeof(block.zero_below));
  uint16_t binade[128];
  for (size_t m = 0; m < 128; ++m) binade[m] = static_cast<uint16_t>(reference << 7 | m);
  quantise(block.codes, reinterpret_cast<const std::byte*>(binade));
  for (uint8_t& code : block.codes) code = static_cast<uint8_t>(code + L::kTableExcess);
#if HWY_TARGET != HWY_AVX3_DL
  for (size_t i = 0; i < 16; ++i) {
    const uint64_t first = block.codes[i * 8];
    uint64_t codes;
    std::memcpy(&codes, block.codes + i * 8, 8);
    const int next =
        std::popcount(codes - first * 0x0101'0101'0101'0101);  // Mantissas past the step.
    block.first_code[i] = static_cast<uint8_t>(first);
    block.last_of_first[i] = static_cast<uint8_t>(2 * (7 - next));
  }
#endif
}

#endif  // Where there are tables.

#if HWY_TARGET == HWY_AVX3_DL

// Keeps the compiler from recomputing a constant for each vector, which would be slower.
HWY_INLINE __m512i Kept(__m512i constant) {
  asm("" : "+v"(constant));
  return constant;
}

HWY_INLINE __m512i KeptBytes(int byte) { return Kept(_mm512_set1_epi8(static_cast<char>(byte))); }

// What is the same for every block.
template <Narrow to>
struct TableConstants {
  using L = TableLayout<to>;
  __m512i even;
  __m512i odd;
  __m512i ones = KeptBytes(0xff);
  __m512i rare_count = KeptBytes(L::kRareCount);
  __m512i most_binades = KeptBytes(L::kMostBinades);
  __m512i excess = KeptBytes(L::kExcess);
  __m512i sign = KeptBytes(0x80);

  HWY_INLINE TableConstants() {
    alignas(64) uint8_t indices[64];
    for (size_t i = 0; i < 64; ++i) indices[i] = static_cast<uint8_t>(2 * i);
    even = Kept(_mm512_load_si512(indices));
    odd = Kept(_mm512_or_si512(even, _mm512_set1_epi8(1)));
  }
};

struct Table {
  __m512i low;
  __m512i high;
  __m512i first_rare;
  __m512i zero_below;
};

HWY_INLINE Table LoadTable(const PreparedBlock& block) {
  return {_mm512_load_si512(block.codes), _mm512_load_si512(block.codes + 64),
          _mm512_load_si512(block.first_rare), _mm512_load_si512(block.zero_below)};
}

// Quantises kTableVector BF16s. Returns false and stores nothing if one needs the general path. A
// streaming store needs a destination of one whole cache line.
template <Narrow to, Stores stores>
HWY_INLINE bool LookUp(uint8_t* dst, const std::byte* src, const Table& table,
                       const TableConstants<to>& constants) {
  const __m512i first = Kept(_mm512_loadu_si512(src));
  const __m512i second = Kept(_mm512_loadu_si512(src + 64));
  const __m512i lower = _mm512_permutex2var_epi8(first, constants.even, second);
  const __m512i upper = _mm512_permutex2var_epi8(first, constants.odd, second);
  // The exponent's last bit is the first bit of the lower byte.
  const __m512i doubled = _mm512_add_epi8(upper, upper);
  const __m512i field =
      _mm512_mask_sub_epi8(doubled, _mm512_movepi8_mask(lower), doubled, constants.ones);
  const __mmask64 rare =
      _mm512_cmplt_epu8_mask(_mm512_sub_epi8(field, table.first_rare), constants.rare_count);
  const __mmask64 not_finite = _mm512_cmpeq_epi8_mask(field, constants.ones);
  if (HWY_UNLIKELY(!_kortestz_mask64_u8(rare, not_finite))) return false;
  const __m512i binades =
      _mm512_min_epu8(_mm512_subs_epu8(field, table.zero_below), constants.most_binades);
  // Bytes do not spill into their neighbours.
  const __m512i steps = _mm512_slli_epi16(binades, TableLayout<to>::kMantissaBits);
  // Takes the lower 7 bits of each index.
  const __m512i codes = _mm512_permutex2var_epi8(table.low, lower, table.high);
  const __m512i code = _mm512_subs_epu8(_mm512_adds_epu8(codes, steps), constants.excess);
  // (upper & 0x80) | code
  const __m512i result = _mm512_ternarylogic_epi32(upper, constants.sign, code, 0xea);
  if constexpr (stores == Stores::kStreaming) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), result);
  } else {
    _mm512_storeu_si512(dst, result);
  }
  return true;
}

#elif defined(KERNELS_BF16_TABLE)

HWY_INLINE __m256i Kept(__m256i constant) {
  asm("" : "+x"(constant));
  return constant;
}

HWY_INLINE __m256i KeptBytes(int byte) { return Kept(_mm256_set1_epi8(static_cast<char>(byte))); }

// What is the same for every block.
template <Narrow to>
struct TableConstants {
  using L = TableLayout<to>;
  __m256i lower_bytes = Kept(_mm256_set1_epi16(0xff));
  __m256i lower_bits = KeptBytes(0x0f);
  __m256i ones = KeptBytes(0xff);
  __m256i last_rare = KeptBytes(L::kRareCount - 1);
  __m256i most_binades = KeptBytes(L::kMostBinades);
  __m256i excess = KeptBytes(L::kExcess);
  __m256i sign = KeptBytes(0x80);

  // Otherwise the compiler generates one that is not compiled for the target.
  HWY_INLINE TableConstants() {}  // NOLINT(modernize-use-equals-default)
};

struct Table {
  __m256i first_code;
  __m256i last_of_first;
  __m256i first_rare;
  __m256i zero_below;
};

HWY_INLINE __m256i LoadTwice(const uint8_t* bytes) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

HWY_INLINE Table LoadTable(const PreparedBlock& block) {
  return {LoadTwice(block.first_code), LoadTwice(block.last_of_first), LoadTwice(block.first_rare),
          LoadTwice(block.zero_below)};
}

// Computes the codes of half a table vector, with its 8-byte quarters in the order 0, 2, 1, 3.
struct HalfCodes {
  __m256i codes;
  __m256i special;  // Bytes that are not 0 mark elements for the general path.
};

template <Narrow to>
HWY_INLINE HalfCodes LookUpHalf(const std::byte* src, const Table& table,
                                const TableConstants<to>& c) {
  const __m256i first = Kept(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src)));
  const __m256i second = Kept(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 32)));
  const __m256i signs = _mm256_packs_epi16(first, second);  // Saturates: each keeps its sign.
  // Without the sign, the exponent fills the upper byte and the mantissa most of the lower byte.
  const __m256i doubled = _mm256_add_epi16(first, first);
  const __m256i doubled2 = _mm256_add_epi16(second, second);
  const __m256i field =
      _mm256_packus_epi16(_mm256_srli_epi16(doubled, 8), _mm256_srli_epi16(doubled2, 8));
  const __m256i mantissa = _mm256_packus_epi16(_mm256_and_si256(doubled, c.lower_bytes),
                                               _mm256_and_si256(doubled2, c.lower_bytes));
  const __m256i index = _mm256_and_si256(_mm256_srli_epi16(mantissa, 4), c.lower_bits);
  const __m256i rest = _mm256_and_si256(mantissa, c.lower_bits);
  const __m256i step = _mm256_cmpgt_epi8(rest, _mm256_shuffle_epi8(table.last_of_first, index));
  const __m256i codes = _mm256_sub_epi8(_mm256_shuffle_epi8(table.first_code, index), step);
  const __m256i rareness = _mm256_sub_epi8(field, table.first_rare);
  const __m256i rare = _mm256_cmpeq_epi8(_mm256_min_epu8(rareness, c.last_rare), rareness);
  const __m256i not_finite = _mm256_cmpeq_epi8(field, c.ones);
  const __m256i binades =
      _mm256_min_epu8(_mm256_subs_epu8(field, table.zero_below), c.most_binades);
  // Bytes do not spill into their neighbours.
  const __m256i steps = _mm256_slli_epi16(binades, TableLayout<to>::kMantissaBits);
  const __m256i code = _mm256_subs_epu8(_mm256_adds_epu8(codes, steps), c.excess);
  return {_mm256_or_si256(_mm256_and_si256(signs, c.sign), code),
          _mm256_or_si256(rare, not_finite)};
}

// As above.
template <Narrow to, Stores stores>
HWY_INLINE bool LookUp(uint8_t* dst, const std::byte* src, const Table& table,
                       const TableConstants<to>& constants) {
  const HalfCodes first = LookUpHalf<to>(src, table, constants);
  const HalfCodes second = LookUpHalf<to>(src + 64, table, constants);
  const __m256i special = _mm256_or_si256(first.special, second.special);
  if (HWY_UNLIKELY(!_mm256_testz_si256(special, special))) return false;
  __m256i* const to_codes = reinterpret_cast<__m256i*>(dst);
  const __m256i a = _mm256_permute4x64_epi64(first.codes, 0xd8);
  const __m256i b = _mm256_permute4x64_epi64(second.codes, 0xd8);
  if constexpr (stores == Stores::kStreaming) {
    _mm256_stream_si256(to_codes, a);
    _mm256_stream_si256(to_codes + 1, b);
  } else {
    _mm256_storeu_si256(to_codes, a);
    _mm256_storeu_si256(to_codes + 1, b);
  }
  return true;
}

#endif  // HWY_TARGET

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Included once for each target.
