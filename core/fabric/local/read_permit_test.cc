// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/local/read_permit.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace waybill::local {
namespace {

class ReadPermitTest : public testing::Test {
 protected:
  ReadPermitTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    own_end_ = UniqueFd(ends[0]);
    peer_end_ = UniqueFd(ends[1]);
  }

  UniqueFd own_end_;
  UniqueFd peer_end_;
  ReadPermit own_ = *ReadPermit::Create();
  ReadPermit peers_ = *ReadPermit::FromPeer(UniqueFd(dup(own_.fd())));
};

TEST_F(ReadPermitTest, ThePeerReadsUntilItIsTakenBack) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(peers_.BeginReading());
    EXPECT_TRUE(peers_.EndReading());
  }
  EXPECT_TRUE(own_.TakeBack(own_end_.get()));
  EXPECT_FALSE(peers_.BeginReading());
  EXPECT_FALSE(peers_.BeginReading());
  EXPECT_TRUE(own_.TakeBack(own_end_.get()));
}

TEST_F(ReadPermitTest, TakingItBackWaitsForTheReader) {
  ASSERT_TRUE(peers_.BeginReading());
  std::atomic<bool> read = false;
  std::thread reader([&] {
    read = true;
    (void)peers_.EndReading();
  });
  EXPECT_TRUE(own_.TakeBack(own_end_.get(), absl::InfiniteDuration()));
  EXPECT_TRUE(read);
  reader.join();
}

// A process that is stopped in the middle of a copy neither goes on nor dies.
TEST_F(ReadPermitTest, AReaderThatIsStoppedIsWaitedForALittleAndWhatItReadIsVoid) {
  ASSERT_TRUE(peers_.BeginReading());
  EXPECT_FALSE(own_.TakeBack(own_end_.get(), absl::ZeroDuration()));
  EXPECT_FALSE(peers_.EndReading());
  EXPECT_FALSE(peers_.BeginReading());
}

TEST_F(ReadPermitTest, AReaderThatDiedIsNotWaitedFor) {
  ASSERT_TRUE(peers_.BeginReading());
  peer_end_.Reset();
  EXPECT_TRUE(own_.TakeBack(own_end_.get(), absl::InfiniteDuration()));
  EXPECT_FALSE(peers_.BeginReading());
}

TEST_F(ReadPermitTest, WhatIsNoPermitIsRefused) {
  EXPECT_FALSE(ReadPermit::FromPeer(UniqueFd(-1)).ok());
}

}  // namespace
}  // namespace waybill::local
