// Quantisation of BF16s by a table of their mantissas, where a target looks bytes up in 128 others;
// for each target of the file that includes this.
//
// Within one binade the code depends on the 7 bits of the mantissa only, and in the next binade it
// is one binade of codes higher, as long as both are normal numbers of the narrow type. So 128
// codes for each block say it all. What does not fall there, and is not 0 either, is told apart.

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

#include "kernels/elements.h"
#include "kernels/prepared_block.h"
#include "kernels/wide_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

inline constexpr size_t kTableVector = 64;  // Elements that go through the table together.

// Where the exponents of a narrow type end. For x of one binade the quotient or product lies within
// 2^e and 2^(e+2); the table is that of e = 0.
template <Narrow to>
struct TableLayout {
  static constexpr int kMantissaBits = to == Narrow::kE4m3 ? 3 : 2;
  static constexpr int kLeastExponent = to == Narrow::kE4m3 ? -6 : -14;
  // From here on products may be half of the least subnormal number, and are not 0 ...
  static constexpr int kFirstRare = kLeastExponent - kMantissaBits - 2;
  // ... and so many binades on they all are normal.
  static constexpr int kRareCount = kMantissaBits + 2;
  // Added to e: what is still negative then has the code 0.
  static constexpr int kOffset = 3 - kLeastExponent;
  static constexpr uint8_t kLargestCode = to == Narrow::kE4m3 ? 0x7e : 0x7b;
  // Past the largest code, and small enough for a byte.
  static constexpr int kMostBinades = to == Narrow::kE4m3 ? 24 : 40;
};

// Fills the table, by `quantise`(codes, 128 BF16s), unless the factor is so large, so small or so
// odd that exponents would end where they must not.
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
}

// Keeps the compiler from making it anew for each vector, which is slower than what it is for.
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
  __m512i offset = KeptBytes(L::kOffset << L::kMantissaBits);
  __m512i largest_code = KeptBytes(L::kLargestCode);
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

// Quantises kTableVector BF16s. False, with nothing stored, if any is for the general path.
template <Narrow to>
HWY_INLINE bool LookUp(uint8_t* dst, const std::byte* src, const Table& table,
                       const TableConstants<to>& constants) {
  const __m512i first = Kept(_mm512_loadu_si512(src));
  const __m512i second = Kept(_mm512_loadu_si512(src + 64));
  const __m512i lower = _mm512_permutex2var_epi8(first, constants.even, second);
  const __m512i upper = _mm512_permutex2var_epi8(first, constants.odd, second);
  // The exponent's last bit is the lower byte's first.
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
  const __m512i code = _mm512_min_epu8(
      _mm512_subs_epu8(_mm512_adds_epu8(codes, steps), constants.offset), constants.largest_code);
  // (upper & 0x80) | code
  _mm512_storeu_si512(dst, _mm512_ternarylogic_epi32(upper, constants.sign, code, 0xea));
  return true;
}

#endif  // HWY_TARGET == HWY_AVX3_DL

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Included once for each target.
