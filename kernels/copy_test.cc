// SPDX-License-Identifier: Apache-2.0

#include "kernels/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/every_target.h"
#include "kernels/test_bytes.h"

namespace waybill::kernels {
namespace {

TEST(Copy, CopiesEveryLengthAndAlignmentAndNoByteMore) {
  OnEveryTarget([] {
    for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
      for (const size_t size :
           {0, 1, 15, 16, 63, 64, 65, 255, 256, 257, 319, 1000, 4096, 10007, 40009}) {
        for (const size_t dst_skew : {0, 1, 2, 31, 32, 63}) {
          for (const size_t src_skew : {0, 3, 64}) {
            const SkewedBytes src = SkewedBytes::Mixed(size, src_skew);
            SkewedBytes dst(size, dst_skew);
            Copy(dst.data(), src.data(), size, stores);
            StreamFence();
            ASSERT_TRUE(std::equal(src.data(), src.data() + size, dst.data()))
                << size << " bytes, skews " << src_skew << " to " << dst_skew;
            ASSERT_TRUE(dst.GuardsHold());
          }
        }
      }
    }
  });
}

TEST(Copy, NothingMayBeCopiedFromNowhere) { Copy(nullptr, nullptr, 0, Stores::kStreaming); }

}  // namespace
}  // namespace waybill::kernels
