// SPDX-License-Identifier: Apache-2.0

#include "kernels/quantise_row.h"

// Makes Highway compile this file for AVX-512 with VBMI too, but neither for AVX-512 without VBMI,
// which takes AVX2's code, nor for what has no AVX2, as no server with GPUs is so old: each target
// adds 70 kB.
#define HWY_WANT_AVX3_DL
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSE4 | HWY_SSSE3 | HWY_AVX3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantise_row.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "kernels/bf16_shift-inl.h"
#include "kernels/bf16_table-inl.h"
#include "kernels/narrow_layout.h"
#include "kernels/prefetch.h"
#include "kernels/scalar_quantise.h"
#include "kernels/wide_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void QuantiseRowOf(uint8_t* dst, const std::byte* src, const BlockRow& row, const float* factors,
                   const QuantiseRule& rule) {
  for (BlockCursor at(row); !at.AtEnd(); at.Next()) {
    scalar::QuantiseRun(dst + at.column(), src + at.column() * SizeBytes(rule.type), at.count(),
                        factors[at.block()], rule);
  }
}

bool StreamsCodesOf(const QuantiseRule&) { return false; }

void QuantisePreparedRowsOf(const RowsOfCodes& rows, const BlockRow& row,
                            const PreparedBlock* blocks, const QuantiseRule& rule) {
  uint8_t* dst = rows.dst;
  const std::byte* src = rows.src;
  for (size_t r = 0; r < rows.count; ++r, dst += rows.dst_pitch, src += rows.src_pitch_bytes) {
    for (BlockCursor at(row); !at.AtEnd(); at.Next()) {
      scalar::QuantiseRun(dst + at.column(), src + at.column() * SizeBytes(rule.type), at.count(),
                          blocks[at.block()].factor, rule);
    }
  }
}

void PrepareBlocksOf(PreparedBlock* prepared, const float* factors, size_t count,
                     const QuantiseRule&) {
  for (size_t i = 0; i < count; ++i) prepared[i].factor = factors[i];
}

#else

using D8 = hn::Rebind<uint8_t, D16>;  // Half a vector.

// The value of 0x7f if it were a number. It replaces NaNs, which are then rounded like others.
template <Narrow type>
inline constexpr float kNanAs = type == Narrow::kE4m3 ? 480.0F : 114688.0F;

// A magnitude on its way to its code. Adding `unit`, a power of two whose last place is that of the
// narrow number, rounds to it and leaves the count of such places in the sum's low bits.
struct Rounded {
  V32 exponent;  // In the field of a float; at least that of the least normal number.
  V32 count;     // In the lower half.
};

template <Narrow to, bool divide>
HWY_INLINE Rounded Round(V32 bits, VF factor) {
  using L = NarrowLayout<to>;
  const D32 d;
  const DF df;
  const VF magnitude = hn::BitCast(df, hn::And(bits, hn::Set(d, 0x7fff'ffff)));
  const VF scaled = divide ? hn::Div(magnitude, factor) : hn::Mul(magnitude, factor);
  const VF clamped = hn::Min(scaled, hn::Set(df, LargestOf(to)));
  const VF value = hn::IfThenElse(hn::IsNaN(scaled), hn::Set(df, kNanAs<to>), clamped);
  const hn::RebindToSigned<D32> di;
  const V32 exponent =
      hn::BitCast(d, hn::Max(hn::And(hn::BitCast(di, value), hn::Set(di, 0x7f80'0000)),
                             hn::Set(di, static_cast<int32_t>(L::kLeastField << 23))));
  const V32 unit = hn::Add(exponent, hn::Set(d, (23 - L::kMantissaBits) << 23));
  return {exponent, hn::BitCast(d, hn::Add(value, hn::BitCast(df, unit)))};
}

// Quantises as many elements as a vector has lanes of 16 bits.
template <Wide type, Wide via, Narrow to, bool divide>
HWY_INLINE void QuantiseVector(uint8_t* dst, const std::byte* src, VF factor) {
  using L = NarrowLayout<to>;
  const D16 d16;
  const Pair<V32> bits = LoadPair<type, via>(src);
  const Rounded a = Round<to, divide>(bits.a, factor);
  const Rounded b = Round<to, divide>(bits.b, factor);
  const V16 exponent =
      hn::ShiftRight<7 - L::kMantissaBits>(JoinHighHalves<type>(a.exponent, b.exponent));
  const V16 count = JoinLowHalves<type>(a.count, b.count);
  const V16 code = hn::Sub(hn::Add(exponent, count),
                           hn::Set(d16, static_cast<uint16_t>(L::kLeastField << L::kMantissaBits)));
  const V16 upper = JoinHighHalves<type>(bits.a, bits.b);
  const V16 sign = hn::And(hn::ShiftRight<8>(upper), hn::Set(d16, 0x80));
  const hn::RebindToSigned<D16> di16;
  hn::StoreU(hn::DemoteTo(D8(), hn::BitCast(di16, hn::Or(code, sign))), D8(), dst);
}

template <Wide type, Wide via, Narrow to, bool divide>
HWY_NOINLINE void QuantiseRun(uint8_t* dst, const std::byte* src, size_t count, float factor) {
  const size_t lanes = hn::Lanes(D16());
  const VF factors = hn::Set(DF(), factor);
  if (count < lanes) {
    alignas(64) std::byte in[hn::MaxLanes(D16()) * 4] = {};
    alignas(64) uint8_t out[hn::MaxLanes(D16())];
    std::memcpy(in, src, count * SizeBytes(type));
    QuantiseVector<type, via, to, divide>(out, in, factors);
    std::memcpy(dst, out, count);
    return;
  }
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    QuantiseVector<type, via, to, divide>(dst + i, src + i * SizeBytes(type), factors);
  }
  if (i != count) {  // The last vector again, from further on.
    i = count - lanes;
    QuantiseVector<type, via, to, divide>(dst + i, src + i * SizeBytes(type), factors);
  }
}

// By tables where there are some.
template <Wide type, Wide via>
constexpr bool HasTables() {
#ifdef KERNELS_BF16_TABLE
  return type == Wide::kBf16 && via == Wide::kBf16;
#else
  return false;
#endif
}

// How far a row has come: `done` elements of a block.
struct Position {
  BlockCursor block;
  size_t done;
};

// Goes on with a row in lanes of 16 bits, up to what the general path must do; false at the row's
// end. (No call in here: its vectors stay in registers.)
template <Narrow to, bool divide>
HWY_NOINLINE bool ShiftOn(uint8_t* dst, const std::byte* src, const float* factors,
                          Position& position) {
  const size_t lanes = hn::Lanes(D16());
  BlockCursor at = position.block;
  size_t done = position.done;
  for (; !at.AtEnd(); at.Next(), done = 0) {
    const Shift shift = ShiftOf<to, divide>(factors[at.block()]);
    const size_t count = shift.is_one ? at.count() : 0;
    for (; done + lanes <= count; done += lanes) {
      const size_t column = at.column() + done;
      if (!QuantiseShifted<to>(dst + column, src + column * 2, shift)) break;
    }
    if (HWY_UNLIKELY(done != at.count())) {
      position = {at, done};
      return true;
    }
  }
  return false;
}

template <Narrow to, bool divide>
void ShiftRow(uint8_t* dst, const std::byte* src, const BlockRow& row, const float* factors) {
  // If one element needs the general path, its neighbours may too: handles twice as many at a time.
  constexpr size_t kMostAtOnce = 4096;
  size_t at_once = hn::Lanes(D16());
  size_t expected = 0;
  Position at{BlockCursor(row), 0};
  while (ShiftOn<to, divide>(dst, src, factors, at)) {
    const float factor = factors[at.block.block()];
    const size_t column = at.block.column() + at.done;
    const size_t left = at.block.count() - at.done;
    at_once = column == expected ? std::min(2 * at_once, kMostAtOnce) : hn::Lanes(D16());
    const size_t count = ShiftOf<to, divide>(factor).is_one ? std::min(left, at_once) : left;
    QuantiseRun<Wide::kBf16, Wide::kBf16, to, divide>(dst + column, src + column * 2, count,
                                                      factor);
    at.done += count;
    expected = column + count;
  }
}

#ifdef KERNELS_BF16_TABLE

// Goes on with a row by tables, up to what the general path must do; false at the row's end. (No
// call in here: its vectors stay in registers.)
template <Narrow to, Stores stores>
HWY_NOINLINE bool LookUpOn(uint8_t* dst, const std::byte* src, ptrdiff_t ahead_bytes,
                           const PreparedBlock* blocks, Position& position) {
  const TableConstants<to> constants;
  BlockCursor at = position.block;
  size_t done = position.done;
  for (; !at.AtEnd(); at.Next(), done = 0) {
    const PreparedBlock& block = blocks[at.block()];
    const size_t count = block.has_table ? at.count() : 0;
    const Table table = LoadTable(block);
    for (; done + kTableVector <= count; done += kTableVector) {
      const size_t column = at.column() + done;
      const std::byte* const from = src + column * 2;
      if (ahead_bytes != 0) {
        PrefetchFar(from + ahead_bytes);
        PrefetchFar(from + ahead_bytes + 64);
      }
      if (!LookUp<to, stores>(dst + column, from, table, constants)) break;
    }
    if (HWY_UNLIKELY(done != at.count())) {
      position = {at, done};
      return true;
    }
  }
  return false;
}

template <Narrow to, bool divide, Stores stores>
void LookUpRows(const RowsOfCodes& rows, const BlockRow& row, const PreparedBlock* blocks) {
  uint8_t* dst = rows.dst;
  const std::byte* src = rows.src;
  for (size_t r = 0; r < rows.count; ++r, dst += rows.dst_pitch, src += rows.src_pitch_bytes) {
    Position at{BlockCursor(row), 0};
    while (LookUpOn<to, stores>(dst, src, rows.ahead_bytes, blocks, at)) {
      const PreparedBlock& block = blocks[at.block.block()];
      const size_t column = at.block.column() + at.done;
      const size_t left = at.block.count() - at.done;
      const size_t count = block.has_table ? std::min(left, kTableVector) : left;
      QuantiseRun<Wide::kBf16, Wide::kBf16, to, divide>(dst + column, src + column * 2, count,
                                                        block.factor);
      at.done += count;
    }
  }
}

#endif  // KERNELS_BF16_TABLE

template <Wide type, Wide via, Narrow to, bool divide>
void QuantisePreparedRowsBy(const RowsOfCodes& rows, const BlockRow& row,
                            const PreparedBlock* blocks) {
#ifdef KERNELS_BF16_TABLE
  if constexpr (HasTables<type, via>()) {
    rows.stores == Stores::kStreaming
        ? LookUpRows<to, divide, Stores::kStreaming>(rows, row, blocks)
        : LookUpRows<to, divide, Stores::kCached>(rows, row, blocks);
    return;
  }
#endif
  uint8_t* dst = rows.dst;
  const std::byte* src = rows.src;
  for (size_t r = 0; r < rows.count; ++r, dst += rows.dst_pitch, src += rows.src_pitch_bytes) {
    for (BlockCursor at(row); !at.AtEnd(); at.Next()) {
      QuantiseRun<type, via, to, divide>(dst + at.column(), src + at.column() * SizeBytes(type),
                                         at.count(), blocks[at.block()].factor);
    }
  }
}

template <Wide type, Wide via, Narrow to, bool divide>
void PrepareBlock(PreparedBlock& block) {
#ifdef KERNELS_BF16_TABLE
  if constexpr (HasTables<type, via>()) {
    PrepareTable<to, divide>(block, [&](uint8_t* codes, const std::byte* binade) HWY_ATTR {
      QuantiseRun<type, via, to, divide>(codes, binade, 128, block.factor);
    });
  }
#endif
  (void)block;
}

// Calls run.operator()<type, via, to, divide>().
template <class Run>
HWY_INLINE void Choose(const QuantiseRule& rule, const Run& run) {
  const auto by_division = [&]<Wide type, Wide via, Narrow to>() HWY_ATTR {
    rule.division == Division::kDivide ? run.template operator()<type, via, to, true>()
                                       : run.template operator()<type, via, to, false>();
  };
  const auto by_narrow = [&]<Wide type, Wide via>() HWY_ATTR {
    rule.to == Narrow::kE4m3 ? by_division.template operator()<type, via, Narrow::kE4m3>()
                             : by_division.template operator()<type, via, Narrow::kE5m2>();
  };
  const auto by_via = [&]<Wide type>() HWY_ATTR {
    if constexpr (type != Wide::kBf16) {
      if (rule.via == Wide::kBf16) return by_narrow.template operator()<type, Wide::kBf16>();
    }
    if constexpr (type != Wide::kF16) {
      if (rule.via == Wide::kF16) return by_narrow.template operator()<type, Wide::kF16>();
    }
    by_narrow.template operator()<type, type>();  // F32, too, has every value of the type.
  };
  switch (rule.type) {
    case Wide::kF32:
      return by_via.template operator()<Wide::kF32>();
    case Wide::kF16:
      return by_via.template operator()<Wide::kF16>();
    case Wide::kBf16:
      return by_via.template operator()<Wide::kBf16>();
  }
}

void QuantiseRowOf(uint8_t* dst, const std::byte* src, const BlockRow& row, const float* factors,
                   const QuantiseRule& rule) {
  Choose(rule, [&]<Wide type, Wide via, Narrow to, bool divide>() HWY_ATTR {
    if constexpr (type == Wide::kBf16 && via == Wide::kBf16) {
      return ShiftRow<to, divide>(dst, src, row, factors);
    }
    for (BlockCursor at(row); !at.AtEnd(); at.Next()) {
      QuantiseRun<type, via, to, divide>(dst + at.column(), src + at.column() * SizeBytes(type),
                                         at.count(), factors[at.block()]);
    }
  });
}

bool StreamsCodesOf(const QuantiseRule& rule) {
  return HasTables<Wide::kBf16, Wide::kBf16>() && rule.type == Wide::kBf16 &&
         rule.via == Wide::kBf16;
}

void QuantisePreparedRowsOf(const RowsOfCodes& rows, const BlockRow& row,
                            const PreparedBlock* blocks, const QuantiseRule& rule) {
  Choose(rule, [&]<Wide type, Wide via, Narrow to, bool divide>()
                   HWY_ATTR { QuantisePreparedRowsBy<type, via, to, divide>(rows, row, blocks); });
}

void PrepareBlocksOf(PreparedBlock* prepared, const float* factors, size_t count,
                     const QuantiseRule& rule) {
  Choose(rule, [&]<Wide type, Wide via, Narrow to, bool divide>() HWY_ATTR {
    for (size_t i = 0; i < count; ++i) {
      prepared[i].factor = factors[i];
      PrepareBlock<type, via, to, divide>(prepared[i]);
    }
  });
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(QuantiseRowOf);
HWY_EXPORT(QuantisePreparedRowsOf);
HWY_EXPORT(StreamsCodesOf);
HWY_EXPORT(PrepareBlocksOf);

void QuantiseRow(uint8_t* dst, const void* src, const BlockRow& row, const float* factors,
                 const QuantiseRule& rule) {
  HWY_DYNAMIC_DISPATCH(QuantiseRowOf)
  (dst, static_cast<const std::byte*>(src), row, factors, rule);
}

bool StreamsCodes(const QuantiseRule& rule) { return HWY_DYNAMIC_DISPATCH(StreamsCodesOf)(rule); }

void QuantisePreparedRows(const RowsOfCodes& rows, const BlockRow& row,
                          const PreparedBlock* prepared, const QuantiseRule& rule) {
  HWY_DYNAMIC_DISPATCH(QuantisePreparedRowsOf)(rows, row, prepared, rule);
}

void PrepareBlocks(PreparedBlock* prepared, const float* factors, size_t count,
                   const QuantiseRule& rule) {
  HWY_DYNAMIC_DISPATCH(PrepareBlocksOf)(prepared, factors, count, rule);
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
