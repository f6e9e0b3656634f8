// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/waker.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstdint>
#include <thread>

namespace waybill {
namespace {

bool IsReadable(const Waker& waker) {
  pollfd waited{.fd = waker.fd(), .events = POLLIN, .revents = 0};
  return poll(&waited, 1, 0) == 1;
}

TEST(Waker, AWakeIsKeptUntilItIsForgotten) {
  Waker waker;
  ASSERT_TRUE(waker.Start().ok());
  EXPECT_FALSE(IsReadable(waker));
  waker.Wake();
  waker.Wake();
  EXPECT_TRUE(IsReadable(waker));
  waker.Forget();
  EXPECT_FALSE(IsReadable(waker));
  waker.Forget();
  waker.Wake();
  EXPECT_TRUE(IsReadable(waker));
}

// One that ended more waits would keep a waiter spinning, on the very processor perhaps that the
// thread which wakes it needs to go on.
TEST(Waker, AWakeEndsOneWaitAtMost) {
  constexpr uint64_t kWakes = 50'000;
  Waker waker;
  ASSERT_TRUE(waker.Start().ok());
  std::atomic<uint64_t> wakes = 0;
  std::thread other([&] {
    while (wakes < kWakes) {
      ++wakes;  // Before the wake: whoever was woken sees it counted.
      waker.Wake();
    }
  });
  uint64_t waits = 0, wakes_before = 0;
  while (waits <= wakes_before && (wakes < kWakes || IsReadable(waker))) {
    pollfd waited{.fd = waker.fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&waited, 1, -1), 1);
    waker.Forget();
    ++waits;
    wakes_before = wakes;
  }
  other.join();
  EXPECT_LE(waits, wakes_before);
}

}  // namespace
}  // namespace waybill
