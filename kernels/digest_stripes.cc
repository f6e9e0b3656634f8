#include "kernels/digest_stripes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/digest_stripes.cc"
#include <hwy/foreach_target.h>  // Includes this file once for each target.
//
#include <hwy/highway.h>

#include <cstring>

#include "kernels/prefetch.h"
#include "kernels/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {

enum class Sink { kNone, kCached, kStreaming };

// What is asked for ahead of time. Hardware prefetchers see the source coming, and asking for it
// only gets into their way; but a line that is to be written is waited for.
enum class Ahead { kNothing, kDestination };

#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE
// No vectors, or vectors whose length the compiler does not know and that make no arrays.
constexpr size_t kLeavesAtOnce = 1;

template <Sink kSink, Ahead kAhead, size_t kLeaves = 1>
void Absorb(std::byte* dst, const std::byte* src, size_t stripe_count, const uint64_t* keys,
            uint64_t* lanes) {
  for (size_t w = 0; w < stripe_count * 8; ++w) {
    uint64_t word;
    std::memcpy(&word, src + w * 8, 8);
    LoadedOnce(word);
    if constexpr (kSink != Sink::kNone) std::memcpy(dst + w * 8, &word, 8);
    scalar::AbsorbWord(word, keys[w], w % 8, lanes);
  }
}
#else
namespace hn = hwy::HWY_NAMESPACE;

// As LoadedOnce, for a vector.
template <class V>
HWY_INLINE void VectorLoadedOnce(V& v) {
#if HWY_TARGET == HWY_EMU128
  asm volatile("" : "+m"(v) : : "memory");
#elif HWY_ARCH_X86
  auto raw = v.raw;
  asm("" : "+v"(raw));
  v = V{raw};
#else
  (void)v;  // Elsewhere arithmetic takes no operands from memory, so there is nothing to gain.
#endif
}

// The leaves that are absorbed side by side, which are as long as pages: kRowsAtOnce, or as many as
// their sums leave registers for.
constexpr size_t kLeavesAtOnce = hn::MaxLanes(hn::CappedTag<uint64_t, 8>()) * kRowsAtOnce / 8;

// Adds stripes of `kLeaves` consecutive leaves to `lanes`, eight for each leaf. The words
// themselves are gathered apart and change lanes once, at the end, which spares a shuffle in the
// loop.
template <Sink kSink, Ahead kAhead, size_t kLeaves = 1>
HWY_INLINE void Absorb(std::byte* HWY_RESTRICT dst, const std::byte* HWY_RESTRICT src,
                       size_t stripe_count, const uint64_t* HWY_RESTRICT keys,
                       uint64_t* HWY_RESTRICT lanes) {
  const hn::CappedTag<uint64_t, 8> d;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  using V = hn::Vec<decltype(d)>;
  constexpr size_t kLanes = hn::MaxLanes(d);
  constexpr size_t kVectors = 8 / kLanes;

  // The sums of vector v of leaf l's lanes are at l * kVectors + v.
  V products[kLeaves * kVectors], words[kLeaves * kVectors];
#pragma GCC unroll 4
  for (size_t i = 0; i < kLeaves * kVectors; ++i) {
    products[i] = hn::Load(d, lanes + i * kLanes);
    words[i] = hn::Zero(d);
  }
  for (size_t s = 0; s < stripe_count; ++s) {
    if constexpr (kAhead == Ahead::kDestination) {
      constexpr size_t kAheadBytes = 2048;
      PrefetchForWrite(dst + s * kStripeBytes + kAheadBytes);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < kLeaves * kVectors; ++i) {
      const size_t in_leaf = s * 8 + i % kVectors * kLanes;
      const size_t at = i / kVectors * scalar::kLeafWords + in_leaf;
      V word = hn::LoadU(d, reinterpret_cast<const uint64_t*>(src) + at);
      VectorLoadedOnce(word);
      if constexpr (kSink == Sink::kCached) {
        hn::StoreU(word, d, reinterpret_cast<uint64_t*>(dst) + at);
      }
      if constexpr (kSink == Sink::kStreaming) {
        hn::Stream(word, d, reinterpret_cast<uint64_t*>(dst) + at);
      }
      const V key = hn::Load(d, keys + in_leaf);
      const V keyed = hn::BitCast(d, hn::Add(hn::BitCast(d32, word), hn::BitCast(d32, key)));
      const V high = hn::ShiftRight<32>(keyed);
      products[i] =
          hn::Add(products[i], hn::MulEven(hn::BitCast(d32, keyed), hn::BitCast(d32, high)));
      words[i] = hn::Add(words[i], word);
    }
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < kLeaves * kVectors; ++i) {
    hn::Store(hn::Add(products[i], hn::Reverse2(d, words[i])), d, lanes + i * kLanes);
  }
}
#endif

void AbsorbWords(std::byte* dst, const std::byte* src, size_t first_word, size_t word_count,
                 const uint64_t* keys, uint64_t* lanes) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  // Masked, so that nothing depends on how many there are: strided rows that are no multiple of a
  // stripe would make every such branch a guess. What is masked out is neither read nor written.
  const hn::CappedTag<uint64_t, 8> d;
  const hn::Repartition<uint32_t, decltype(d)> d32;
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
    const auto keyed = hn::BitCast(d, hn::Add(hn::BitCast(d32, word), hn::BitCast(d32, key)));
    const auto product =
        hn::MulEven(hn::BitCast(d32, keyed), hn::BitCast(d32, hn::ShiftRight<32>(keyed)));
    const auto sum = hn::Add(hn::Load(d, lanes + begin), hn::Add(product, hn::Reverse2(d, word)));
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

// Takes `kLeaves` leaves, and returns the sum of their values.
template <Sink kSink, Ahead kAhead, size_t kLeaves>
uint64_t TakeLeaves(std::byte* dst, const std::byte* src, uint64_t first_leaf) {
  constexpr size_t kStripes = scalar::kLeafWords * 8 / kStripeBytes;
  alignas(64) uint64_t lanes[kLeaves * scalar::kLaneCount] = {};
  Absorb<kSink, kAhead, kLeaves>(dst, src, kStripes, scalar::kDigestConstants.keys.data(), lanes);
  uint64_t sum = 0;
  for (size_t l = 0; l < kLeaves; ++l) {
    sum += scalar::LeafValue(lanes + l * scalar::kLaneCount, first_leaf + l);
  }
  return sum;
}

template <Sink kSink>
uint64_t Leaves(std::byte* dst, const std::byte* src, size_t leaf_count, uint64_t first_leaf) {
  constexpr size_t kLeafBytes = scalar::kLeafWords * 8;
  // Lines that are to be cached are waited for in any case.
  constexpr size_t kAtOnce = kSink == Sink::kCached ? 1 : kLeavesAtOnce;
  uint64_t sum = 0;
  size_t leaf = 0;
  const auto destination = [&] { return kSink == Sink::kNone ? dst : dst + leaf * kLeafBytes; };
  for (; kAtOnce > 1 && leaf + kAtOnce <= leaf_count; leaf += kAtOnce) {
    sum += TakeLeaves<kSink, Ahead::kNothing, kAtOnce>(destination(), src + leaf * kLeafBytes,
                                                       first_leaf + leaf);
  }
  for (; leaf < leaf_count; ++leaf) {
    if (kSink == Sink::kCached && leaf + 1 < leaf_count) {
      sum += TakeLeaves<kSink, Ahead::kDestination, 1>(destination(), src + leaf * kLeafBytes,
                                                       first_leaf + leaf);
    } else {
      sum += TakeLeaves<kSink, Ahead::kNothing, 1>(destination(), src + leaf * kLeafBytes,
                                                   first_leaf + leaf);
    }
  }
  return sum;
}

void AbsorbStripes(const std::byte* src, size_t stripe_count, const uint64_t* keys,
                   uint64_t* lanes) {
  Absorb<Sink::kNone, Ahead::kNothing>(nullptr, src, stripe_count, keys, lanes);
}

void AbsorbCopyStripes(std::byte* dst, const std::byte* src, size_t stripe_count,
                       const uint64_t* keys, uint64_t* lanes, Stores stores) {
  if (stores == Stores::kStreaming) {
    Absorb<Sink::kStreaming, Ahead::kNothing>(dst, src, stripe_count, keys, lanes);
  } else {
    Absorb<Sink::kCached, Ahead::kNothing>(dst, src, stripe_count, keys, lanes);
  }
}

uint64_t SumLeaves(const std::byte* src, size_t leaf_count, uint64_t first_leaf) {
  return Leaves<Sink::kNone>(nullptr, src, leaf_count, first_leaf);
}

uint64_t SumCopyLeaves(std::byte* dst, const std::byte* src, size_t leaf_count, uint64_t first_leaf,
                       Stores stores) {
  return stores == Stores::kStreaming ? Leaves<Sink::kStreaming>(dst, src, leaf_count, first_leaf)
                                      : Leaves<Sink::kCached>(dst, src, leaf_count, first_leaf);
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

void AbsorbStripes(const std::byte* src, size_t stripe_count, const uint64_t* keys,
                   uint64_t* lanes) {
  HWY_DYNAMIC_DISPATCH(AbsorbStripes)(src, stripe_count, keys, lanes);
}

void AbsorbCopyStripes(std::byte* dst, const std::byte* src, size_t stripe_count,
                       const uint64_t* keys, uint64_t* lanes, Stores stores) {
  HWY_DYNAMIC_DISPATCH(AbsorbCopyStripes)(dst, src, stripe_count, keys, lanes, stores);
}

void AbsorbWords(std::byte* dst, const std::byte* src, size_t first_word, size_t word_count,
                 const uint64_t* keys, uint64_t* lanes) {
  HWY_DYNAMIC_DISPATCH(AbsorbWords)(dst, src, first_word, word_count, keys, lanes);
}

uint64_t SumLeaves(const std::byte* src, size_t leaf_count, uint64_t first_leaf) {
  return HWY_DYNAMIC_DISPATCH(SumLeaves)(src, leaf_count, first_leaf);
}

uint64_t SumCopyLeaves(std::byte* dst, const std::byte* src, size_t leaf_count, uint64_t first_leaf,
                       Stores stores) {
  return HWY_DYNAMIC_DISPATCH(SumCopyLeaves)(dst, src, leaf_count, first_leaf, stores);
}

}  // namespace waybill::kernels
#endif  // HWY_ONCE
