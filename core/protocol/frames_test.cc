// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/frames.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/protocol/messages.pb.h"

namespace waybill {
namespace {

using proto::RankFrame;
using proto::RankMessage;

RankMessage Publish(uint64_t version) {
  RankMessage message;
  message.mutable_publish()->set_version(version);
  return message;
}

RankMessage ManifestOf(size_t size_bytes) {
  RankMessage message;
  message.mutable_manifest()->set_head(std::string(size_bytes, 'm'));
  return message;
}

// What comes out at the other end of a stream, and in how many frames.
struct Carried {
  std::vector<RankMessage> messages;
  uint32_t frames = 0;
};

Carried Carry(OutgoingFrames<RankFrame>& outgoing) {
  IncomingFrames<RankFrame> incoming(size_t{1} << 30);
  Carried carried;
  for (; !outgoing.empty(); outgoing.Pop(), ++carried.frames) {
    RankFrame frame;
    EXPECT_TRUE(frame.ParseFromString(outgoing.front().SerializeAsString()));
    const auto messages = incoming.Add(std::move(frame));
    EXPECT_TRUE(messages.ok());
    carried.messages.insert(carried.messages.end(), messages->begin(), messages->end());
  }
  return carried;
}

TEST(FramesTest, WhatWaitsBehindAFrameTravelsTogetherAndInOrder) {
  OutgoingFrames<RankFrame> outgoing;
  for (uint64_t version = 1; version <= 200; ++version) outgoing.Push(Publish(version));
  EXPECT_EQ(outgoing.front().messages_size(), 1);  // It may be on its way already.
  const Carried carried = Carry(outgoing);
  EXPECT_EQ(carried.frames, 2u);
  ASSERT_EQ(carried.messages.size(), 200u);
  for (uint64_t i = 0; i < 200; ++i) EXPECT_EQ(carried.messages[i].publish().version(), i + 1);
}

TEST(FramesTest, AFrameTakesNoMoreThanItMay) {
  OutgoingFrames<RankFrame> outgoing;
  for (int i = 0; i < 5; ++i) outgoing.Push(ManifestOf(kMostFrameBytes / 2 - 100));
  EXPECT_EQ(Carry(outgoing).frames, 3u);  // 1, 2 and 2.
}

TEST(FramesTest, AMessageThatIsTooLongTravelsInFragmentsBetweenTheOthers) {
  OutgoingFrames<RankFrame> outgoing;
  const RankMessage manifest = ManifestOf(2 * kMostFrameBytes + 5);
  outgoing.Push(Publish(1));
  outgoing.Push(manifest);
  outgoing.Push(Publish(2));
  const Carried carried = Carry(outgoing);
  EXPECT_EQ(carried.frames, 5u);
  ASSERT_EQ(carried.messages.size(), 3u);
  EXPECT_EQ(carried.messages[0].publish().version(), 1u);
  EXPECT_EQ(carried.messages[1].SerializeAsString(), manifest.SerializeAsString());
  EXPECT_EQ(carried.messages[2].publish().version(), 2u);
}

TEST(FramesTest, WhatIsLongerThanTheBoundIsRefusedBeforeItIsWhole) {
  for (const size_t size_bytes : {size_t{2000}, 3 * kMostFrameBytes}) {
    OutgoingFrames<RankFrame> outgoing;
    outgoing.Push(ManifestOf(size_bytes));
    IncomingFrames<RankFrame> incoming(1000);
    EXPECT_EQ(incoming.Add(outgoing.front()).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(FramesTest, FragmentsThatAreNoMessageEndTheStream) {
  RankFrame frame;
  frame.mutable_fragment()->set_data("\xff\xff");
  IncomingFrames<RankFrame> incoming(1000);
  EXPECT_TRUE(incoming.Add(frame)->empty());
  RankFrame whole;
  *whole.add_messages() = Publish(1);
  EXPECT_EQ(incoming.Add(whole).status().code(), absl::StatusCode::kInvalidArgument);
  frame.mutable_fragment()->set_last(true);
  EXPECT_EQ(incoming.Add(frame).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace waybill
