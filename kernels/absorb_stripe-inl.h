// SPDX-License-Identifier: Apache-2.0

// The arithmetic of the digest in vectors. Compiled for each target of the file that includes this.

#if defined(KERNELS_ABSORB_STRIPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KERNELS_ABSORB_STRIPE_INL_H_
#undef KERNELS_ABSORB_STRIPE_INL_H_
#else
#define KERNELS_ABSORB_STRIPE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/digest_stripes.h"
#include "kernels/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace waybill::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How absorbed bytes are stored: nowhere, through the cache, or past it.
enum class Sink { kNone, kCached, kStreaming };

// Returns where byte `at` goes; `dst` itself is null where nothing goes anywhere.
template <Sink kSink>
HWY_INLINE std::byte* SinkAt(std::byte* dst, ptrdiff_t at) {
  return kSink == Sink::kNone ? dst : dst + at;
}

#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
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

// Returns words from `src`, which go to `dst` too, as the sink says.
template <Sink kSink, class D>
HWY_INLINE hn::Vec<D> TakeWords(D d, std::byte* HWY_RESTRICT dst,
                                const std::byte* HWY_RESTRICT src) {
  auto words = hn::LoadU(d, reinterpret_cast<const uint64_t*>(src));
  VectorLoadedOnce(words);
  if constexpr (kSink == Sink::kCached) hn::StoreU(words, d, reinterpret_cast<uint64_t*>(dst));
  if constexpr (kSink == Sink::kStreaming) hn::Stream(words, d, reinterpret_cast<uint64_t*>(dst));
  return words;
}

// Returns the products that words add to their lanes.
template <class D, class V>
HWY_INLINE V KeyedProducts(D d, V words, V keys) {
  const hn::Repartition<uint32_t, D> d32;
  const auto keyed = hn::Add(hn::BitCast(d32, words), hn::BitCast(d32, keys));
  const auto high = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d, keyed)));
  return hn::MulEven(keyed, high);
}
#endif

// Adds a stripe to the eight lanes of its leaf.
template <Sink kSink>
HWY_INLINE void AbsorbStripe(std::byte* HWY_RESTRICT dst, const std::byte* HWY_RESTRICT src,
                             const uint64_t* HWY_RESTRICT keys, uint64_t* HWY_RESTRICT lanes) {
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE
  for (size_t w = 0; w < 8; ++w) {
    uint64_t word;
    std::memcpy(&word, src + w * 8, 8);
    LoadedOnce(word);
    if constexpr (kSink != Sink::kNone) std::memcpy(dst + w * 8, &word, 8);
    scalar::AbsorbWord(word, keys[w], w, lanes);
  }
#else
  const hn::CappedTag<uint64_t, 8> d;
  for (size_t w = 0; w < 8; w += hn::Lanes(d)) {
    const auto words = TakeWords<kSink>(d, SinkAt<kSink>(dst, w * 8), src + w * 8);
    const auto products = KeyedProducts(d, words, hn::Load(d, keys + w));
    const auto sum = hn::Add(hn::Load(d, lanes + w), hn::Add(products, hn::Reverse2(d, words)));
    hn::Store(sum, d, lanes + w);
  }
#endif
}

// Adds neighbouring stripes of one leaf, which lie `step_bytes` apart at `src`.
template <size_t kStripes>
HWY_INLINE void AbsorbNeighbours(const std::byte* HWY_RESTRICT src, size_t step_bytes,
                                 const uint64_t* HWY_RESTRICT keys, uint64_t* HWY_RESTRICT lanes) {
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE
  for (size_t i = 0; i < kStripes; ++i) {
    AbsorbStripe<Sink::kNone>(nullptr, src + i * step_bytes, keys + i * 8, lanes);
  }
#else
  const hn::CappedTag<uint64_t, 8> d;
  for (size_t w = 0; w < 8; w += hn::Lanes(d)) {
    auto sum = hn::Load(d, lanes + w);
#pragma GCC unroll 4
    for (size_t i = 0; i < kStripes; ++i) {
      const auto words = TakeWords<Sink::kNone>(d, nullptr, src + i * step_bytes + w * 8);
      const auto products = KeyedProducts(d, words, hn::Load(d, keys + i * 8 + w));
      sum = hn::Add(sum, hn::Add(products, hn::Reverse2(d, words)));
    }
    hn::Store(sum, d, lanes + w);
  }
#endif
}

}  // namespace waybill::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // Included once for each target.
