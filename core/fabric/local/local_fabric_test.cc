// SPDX-License-Identifier: Apache-2.0

// What comes in from outside: strangers, a peer whose frames make no sense, and one that is
// stopped.
#include "core/fabric/local/local_fabric.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "core/fabric/local/raw_peer.h"

namespace waybill::local {
namespace {

class LocalPeerTest : public testing::Test {
 protected:
  void ExpectThatTheLaneFails() {
    EXPECT_TRUE(fabric_.UntilEvent(FabricEvent::Kind::kFailed));
    EXPECT_EQ(fabric_->LaneStatus(lane_).code(), absl::StatusCode::kDataLoss)
        << fabric_->LaneStatus(lane_);
  }

  DrivenFabric fabric_;
  LaneId lane_ = *fabric_->OpenLane("peer", "");
  RawPeer peer_{*fabric_->LaneAddress(lane_)};
};

TEST_F(LocalPeerTest, ADoneThatNobodyAskedForIsNoCompletion) {
  ASSERT_TRUE(peer_.Join(fabric_, lane_));
  ASSERT_TRUE(peer_.Say({.kind = FrameKind::kDone, .token = 1'000'000}).ok());
  ExpectThatTheLaneFails();
  EXPECT_EQ(fabric_.Count(FabricEvent::Kind::kComplete), 0u);
}

TEST_F(LocalPeerTest, ADoneOfAnotherPostIsNoCompletion) {
  ASSERT_TRUE(peer_.Join(fabric_, lane_));
  ASSERT_TRUE(fabric_->Post(lane_, {}, std::nullopt, 7).ok());
  ASSERT_TRUE(fabric_->Post(lane_, {}, std::nullopt, 8).ok());
  ASSERT_TRUE(peer_.Say({.kind = FrameKind::kDone, .token = 7}).ok());
  ASSERT_TRUE(peer_.Say({.kind = FrameKind::kDone, .token = 7}).ok());
  ExpectThatTheLaneFails();
  EXPECT_EQ(fabric_.Count(FabricEvent::Kind::kComplete), 1u);
}

TEST_F(LocalPeerTest, NothingCountsBeforeTheWelcome) {
  ASSERT_TRUE(peer_.SayHello().ok());
  ASSERT_TRUE(peer_.Say({.kind = FrameKind::kImmediate, .immediate = 5}).ok());
  ExpectThatTheLaneFails();
  EXPECT_EQ(fabric_.Count(FabricEvent::Kind::kImmediate), 0u);
}

TEST_F(LocalPeerTest, APeerDoesNotWelcomeItself) {
  ASSERT_TRUE(peer_.SayHello().ok());
  ASSERT_TRUE(peer_.Say({.kind = FrameKind::kWelcome}).ok());
  ExpectThatTheLaneFails();
  EXPECT_EQ(fabric_.Count(FabricEvent::Kind::kConnected), 0u);
}

// Those of this process now.
size_t OpenDescriptors() {
  DIR* const directory = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// Sends `count` descriptors in one frame.
void SendDescriptors(int socket, size_t count) {
  const FrameHeader header{.kind = FrameKind::kGrant};
  iovec part{const_cast<FrameHeader*>(&header), sizeof(header)};
  std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(count * sizeof(int));
  const std::vector<int> fds(count, STDIN_FILENO);
  std::memcpy(CMSG_DATA(rights), fds.data(), count * sizeof(int));
  ASSERT_GT(sendmsg(socket, &message, 0), 0);
}

TEST_F(LocalPeerTest, AnAnswerToAProbeThatNobodySentIsNone) {
  ASSERT_TRUE(peer_.Join(fabric_, lane_));
  ASSERT_TRUE(peer_.Say({.kind = FrameKind::kTried}).ok());
  ExpectThatTheLaneFails();
}

TEST_F(LocalPeerTest, AGpusMemoryIsNotReadWhereNoGpuReceives) {
  ASSERT_TRUE(peer_.Join(fabric_, lane_));
  const Region region = *fabric_->Allocate(100, "memory");
  ASSERT_TRUE(fabric_->Grant(lane_, region.id).ok());
  const GrantBody grant{.key = 7, .size_bytes = 100, .gpu_memory = {.key = 5}};
  WriteRecord record{.source_key = 7, .size_bytes = 100};
  ASSERT_TRUE(absl::SimpleHexAtoi(*fabric_->Describe(region.id), &record.destination_key));
  const auto text = [](const auto& body) {
    return absl::string_view(reinterpret_cast<const char*>(&body), sizeof(body));
  };
  ASSERT_TRUE(peer_.Say({.kind = FrameKind::kGrant}, text(grant)).ok());
  ASSERT_TRUE(peer_.Say({.kind = FrameKind::kWrites, .count = 1}, text(record)).ok());
  EXPECT_TRUE(fabric_.UntilEvent(FabricEvent::Kind::kFailed));
  EXPECT_EQ(fabric_->LaneStatus(lane_).code(), absl::StatusCode::kFailedPrecondition)
      << fabric_->LaneStatus(lane_);
}

class LocalPartsTest : public LocalPeerTest {
 protected:
  absl::Status SayPart(uint64_t index) {
    const PartBody part{.index = index, .size_bytes = 4096};
    return peer_.Say({.kind = FrameKind::kPart},
                     {reinterpret_cast<const char*>(&part), sizeof(part)}, STDIN_FILENO);
  }
  absl::Status SayGrant(uint64_t part_count) {
    const GrantBody grant{
        .key = 7, .size_bytes = 100, .gpu_memory = {.key = 5, .part_count = part_count}};
    return peer_.Say({.kind = FrameKind::kGrant},
                     {reinterpret_cast<const char*>(&grant), sizeof(grant)});
  }
  // Nothing that the peer has said before ended the lane.
  void ExpectThatTheLaneGoesOn() {
    ASSERT_TRUE(peer_.Say({.kind = FrameKind::kImmediate, .immediate = 5}).ok());
    EXPECT_TRUE(fabric_.UntilEvent(FabricEvent::Kind::kImmediate));
    EXPECT_TRUE(fabric_->LaneStatus(lane_).ok()) << fabric_->LaneStatus(lane_);
  }
};

TEST_F(LocalPartsTest, AGrantWhosePartsDidNotComeEndsTheLane) {
  ASSERT_TRUE(peer_.Join(fabric_, lane_));
  ASSERT_TRUE(SayGrant(/*part_count=*/2).ok());
  ExpectThatTheLaneFails();
}

TEST_F(LocalPartsTest, APartThatIsNotTheNextOneEndsTheLane) {
  ASSERT_TRUE(peer_.Join(fabric_, lane_));
  ASSERT_TRUE(SayPart(1).ok());
  ExpectThatTheLaneFails();
}

TEST_F(LocalPartsTest, MorePartsThanARegionHasEndTheLane) {
  ASSERT_TRUE(peer_.Join(fabric_, lane_));
  ASSERT_TRUE(SayPart(kMostParts).ok());
  ExpectThatTheLaneFails();
}

// Its owner could not export all of them.
TEST_F(LocalPartsTest, PartsThatAreGivenUpHarmNobodyAndTheirFilesAreClosed) {
  ASSERT_TRUE(peer_.Join(fabric_, lane_));
  ExpectThatTheLaneGoesOn();
  const size_t before = OpenDescriptors();
  ASSERT_TRUE(SayPart(0).ok());
  ASSERT_TRUE(SayPart(1).ok());
  ASSERT_TRUE(SayPart(0).ok());
  ASSERT_TRUE(SayGrant(/*part_count=*/0).ok());
  fabric_.Forget();
  ExpectThatTheLaneGoesOn();
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(LocalPeerTest, MoreDescriptorsThanOneAreClosed) {
  for (const size_t count : {2, 3, 100}) {
    const LaneId lane = *fabric_->OpenLane("peer", "");
    RawPeer peer(*fabric_->LaneAddress(lane));
    ASSERT_TRUE(peer.Join(fabric_, lane));
    const size_t before = OpenDescriptors();
    SendDescriptors(peer.socket(), count);
    EXPECT_TRUE(fabric_.Until([&] { return !fabric_->LaneStatus(lane).ok(); }));
    EXPECT_LT(OpenDescriptors(), before) << count;  // The lane's own are closed.
  }
}

TEST_F(LocalPeerTest, WhoPostsWithoutReadingIsCutOff) {
  ASSERT_TRUE(peer_.Join(fabric_, lane_));
  const bool cut_off = fabric_.Until([&] {
    (void)peer_.Say({.kind = FrameKind::kWrites, .wants_done = 1});
    return !fabric_->LaneStatus(lane_).ok();
  });
  EXPECT_TRUE(cut_off);
  EXPECT_EQ(fabric_->LaneStatus(lane_).code(), absl::StatusCode::kResourceExhausted);
}

// A peer that is stopped in the middle of a copy must not stop this end too.
TEST_F(LocalPeerTest, ALaneIsClosedThoughThePeerIsStoppedWhileItReads) {
  ASSERT_TRUE(peer_.Join(fabric_, lane_));
  ASSERT_TRUE(peer_.permit_of_lane->BeginReading());
  ASSERT_TRUE(fabric_->CloseLane(lane_).ok());
  EXPECT_FALSE(peer_.permit_of_lane->EndReading());
}

TEST(LocalStrangers, WhoSaysNothingIsClosedAfterAWhile) {
  DrivenFabric fabric({.stranger_timeout = absl::Milliseconds(30)});
  RawPeer first(*fabric->LaneAddress(*fabric->OpenLane("peer", "")));
  EXPECT_TRUE(first.IsClosed(fabric));
  RawPeer second(*fabric->LaneAddress(*fabric->OpenLane("peer", "")));
  EXPECT_TRUE(second.IsClosed(fabric));
  EXPECT_EQ(fabric.Counted("silent_strangers"), 2u);
}

TEST(LocalStrangers, OfTooManyTheOldestIsClosed) {
  DrivenFabric fabric({.stranger_timeout = absl::Hours(1), .most_strangers = 3});
  const LaneId lane = *fabric->OpenLane("peer", "");
  std::vector<std::unique_ptr<RawPeer>> crowd;
  for (int i = 0; i < 10; ++i) {
    crowd.push_back(std::make_unique<RawPeer>(*fabric->LaneAddress(lane)));
  }
  ASSERT_TRUE(fabric.Until([&] { return fabric.Counted("accepted_sockets") == 10; }));
  EXPECT_EQ(fabric.Counted("silent_strangers"), 7u);
  EXPECT_TRUE(crowd.front()->IsClosed(fabric));
  EXPECT_TRUE(crowd.back()->Join(fabric, lane));
}

TEST(LocalStrangers, AHelloToNoLaneOfOursIsRefused) {
  DrivenFabric fabric;
  const LaneId lane = *fabric->OpenLane("peer", "");
  RawPeer stranger(*fabric->LaneAddress(lane));
  ASSERT_TRUE(fabric->CloseLane(lane).ok());
  ASSERT_TRUE(stranger.SayHello().ok());
  EXPECT_TRUE(stranger.IsClosed(fabric));
  RawPeer garbage(*fabric->LaneAddress(*fabric->OpenLane("peer", "")));
  ASSERT_TRUE(garbage.Say({.kind = FrameKind::kDone}, "what?").ok());
  EXPECT_TRUE(garbage.IsClosed(fabric));
  EXPECT_EQ(fabric.Counted("refused_strangers"), 2u);
}

}  // namespace
}  // namespace waybill::local
