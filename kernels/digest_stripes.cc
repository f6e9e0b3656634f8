// SPDX-License-Identifier: Apache-2.0

#include "kernels/digest_stripes.h"

// Not for what has no AVX2: no server with GPUs is so old, and each target has its size.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSE4 | HWY_SSSE3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/digest_stripes.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <cstring>

#include "kernels/absorb_stripe-inl.h"
#include "kernels/prefetch.h"
#include "kernels/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {

// Adds stripes of one leaf to its eight lanes. The words themselves are gathered apart and change
// lanes once, at the end, which spares a shuffle in the loop. A line that is to be cached is waited
// for; `kOwnsAhead` asks for it too.
template <Sink kSink, bool kOwnsAhead>
HWY_INLINE void Absorb(std::byte* HWY_RESTRICT dst, const std::byte* HWY_RESTRICT src,
                       size_t stripe_count, const uint64_t* HWY_RESTRICT keys,
                       uint64_t* HWY_RESTRICT lanes, ptrdiff_t ahead) {
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE
  // No vectors, or vectors whose length the compiler does not know and that make no arrays.
  for (size_t s = 0; s < stripe_count; ++s) {
    PrefetchFar(src + s * kStripeBytes + ahead);
    AbsorbStripe<kSink>(SinkAt<kSink>(dst, s * kStripeBytes), src + s * kStripeBytes, keys + s * 8,
                        lanes);
  }
#else
  const hn::CappedTag<uint64_t, 8> d;
  using V = hn::Vec<decltype(d)>;
  constexpr size_t kLanes = hn::MaxLanes(d);
  constexpr size_t kVectors = 8 / kLanes;

  V products[kVectors], words[kVectors];
#pragma GCC unroll 4
  for (size_t v = 0; v < kVectors; ++v) {
    products[v] = hn::Load(d, lanes + v * kLanes);
    words[v] = hn::Zero(d);
  }
  for (size_t s = 0; s < stripe_count; ++s) {
    PrefetchFar(src + s * kStripeBytes + ahead);
    if constexpr (kOwnsAhead) {
      constexpr size_t kAheadBytes = 2048;
      PrefetchForWrite(dst + s * kStripeBytes + kAheadBytes);
    }
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      const size_t at = s * 8 + v * kLanes;
      const V word = TakeWords<kSink>(d, SinkAt<kSink>(dst, at * 8), src + at * 8);
      products[v] = hn::Add(products[v], KeyedProducts(d, word, hn::Load(d, keys + at)));
      words[v] = hn::Add(words[v], word);
    }
  }
#pragma GCC unroll 4
  for (size_t v = 0; v < kVectors; ++v) {
    hn::Store(hn::Add(products[v], hn::Reverse2(d, words[v])), d, lanes + v * kLanes);
  }
#endif
}

void AbsorbWords(std::byte* dst, const std::byte* src, size_t first_word, size_t word_count,
                 const uint64_t* keys, uint64_t* lanes) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  // Masked, so that nothing depends on how many there are: strided rows that are no multiple of a
  // stripe would make every such branch a guess. What is masked out is neither read nor written.
  const hn::CappedTag<uint64_t, 8> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  const size_t end_word = first_word + word_count;
#pragma GCC unroll 4
  for (size_t begin = 0; begin < 8; begin += kLanes) {
    const auto mask = hn::AndNot(hn::FirstN(d, first_word < begin ? 0 : first_word - begin),
                                 hn::FirstN(d, end_word < begin ? 0 : end_word - begin));
    auto word =
        hn::MaskedLoad(mask, d, reinterpret_cast<const uint64_t*>(src - first_word * 8) + begin);
    VectorLoadedOnce(word);
    if (dst != nullptr) {
      hn::BlendedStore(word, mask, d, reinterpret_cast<uint64_t*>(dst - first_word * 8) + begin);
    }
    const auto key = hn::IfThenElseZero(mask, hn::Load(d, keys + begin));
    const auto sum = hn::Add(hn::Load(d, lanes + begin),
                             hn::Add(KeyedProducts(d, word, key), hn::Reverse2(d, word)));
    hn::Store(sum, d, lanes + begin);
  }
#else
  for (size_t w = first_word; w < first_word + word_count; ++w, src += 8) {
    uint64_t word;
    std::memcpy(&word, src, 8);
    LoadedOnce(word);
    if (dst != nullptr) {
      std::memcpy(dst, &word, 8);
      dst += 8;
    }
    scalar::AbsorbWord(word, keys[w], w, lanes);
  }
#endif
}

template <Sink kSink, bool kOwnsAhead>
uint64_t Leaf(std::byte* dst, const std::byte* src, uint64_t index, ptrdiff_t ahead) {
  constexpr size_t kStripes = scalar::kLeafWords * 8 / kStripeBytes;
  alignas(64) uint64_t lanes[scalar::kLaneCount] = {};
  Absorb<kSink, kOwnsAhead>(dst, src, kStripes, scalar::kDigestConstants.keys.data(), lanes, ahead);
  return scalar::LeafValue(lanes, index);
}

template <Sink kSink>
uint64_t Leaves(std::byte* dst, const std::byte* src, size_t leaf_count, uint64_t first_leaf,
                ptrdiff_t ahead) {
  constexpr size_t kLeafBytes = scalar::kLeafWords * 8;
  uint64_t sum = 0;
  for (; leaf_count > 1; --leaf_count, src += kLeafBytes) {
    sum += Leaf<kSink, kSink == Sink::kCached>(dst, src, first_leaf++, ahead);
    dst = SinkAt<kSink>(dst, kLeafBytes);
  }
  return sum + Leaf<kSink, false>(dst, src, first_leaf, ahead);
}

void AbsorbStripes(const std::byte* src, size_t stripe_count, const uint64_t* keys, uint64_t* lanes,
                   ptrdiff_t ahead) {
  Absorb<Sink::kNone, false>(nullptr, src, stripe_count, keys, lanes, ahead);
}

void AbsorbCopyStripes(std::byte* dst, const std::byte* src, size_t stripe_count,
                       const uint64_t* keys, uint64_t* lanes, Stores stores, ptrdiff_t ahead) {
  if (stores == Stores::kStreaming) {
    Absorb<Sink::kStreaming, false>(dst, src, stripe_count, keys, lanes, ahead);
  } else {
    Absorb<Sink::kCached, false>(dst, src, stripe_count, keys, lanes, ahead);
  }
}

uint64_t SumLeaves(const std::byte* src, size_t leaf_count, uint64_t first_leaf, ptrdiff_t ahead) {
  return Leaves<Sink::kNone>(nullptr, src, leaf_count, first_leaf, ahead);
}

uint64_t SumCopyLeaves(std::byte* dst, const std::byte* src, size_t leaf_count, uint64_t first_leaf,
                       Stores stores, ptrdiff_t ahead) {
  return stores == Stores::kStreaming
             ? Leaves<Sink::kStreaming>(dst, src, leaf_count, first_leaf, ahead)
             : Leaves<Sink::kCached>(dst, src, leaf_count, first_leaf, ahead);
}

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace waybill::kernels {

HWY_EXPORT(AbsorbStripes);
HWY_EXPORT(AbsorbCopyStripes);
HWY_EXPORT(AbsorbWords);
HWY_EXPORT(SumLeaves);
HWY_EXPORT(SumCopyLeaves);

void AbsorbStripes(const std::byte* src, size_t stripe_count, const uint64_t* keys, uint64_t* lanes,
                   ptrdiff_t ahead) {
  HWY_DYNAMIC_DISPATCH(AbsorbStripes)(src, stripe_count, keys, lanes, ahead);
}

void AbsorbCopyStripes(std::byte* dst, const std::byte* src, size_t stripe_count,
                       const uint64_t* keys, uint64_t* lanes, Stores stores, ptrdiff_t ahead) {
  HWY_DYNAMIC_DISPATCH(AbsorbCopyStripes)(dst, src, stripe_count, keys, lanes, stores, ahead);
}

void AbsorbWords(std::byte* dst, const std::byte* src, size_t first_word, size_t word_count,
                 const uint64_t* keys, uint64_t* lanes) {
  HWY_DYNAMIC_DISPATCH(AbsorbWords)(dst, src, first_word, word_count, keys, lanes);
}

uint64_t SumLeaves(const std::byte* src, size_t leaf_count, uint64_t first_leaf, ptrdiff_t ahead) {
  return HWY_DYNAMIC_DISPATCH(SumLeaves)(src, leaf_count, first_leaf, ahead);
}

uint64_t SumCopyLeaves(std::byte* dst, const std::byte* src, size_t leaf_count, uint64_t first_leaf,
                       Stores stores, ptrdiff_t ahead) {
  return HWY_DYNAMIC_DISPATCH(SumCopyLeaves)(dst, src, leaf_count, first_leaf, stores, ahead);
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
