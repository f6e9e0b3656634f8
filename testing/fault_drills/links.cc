// SPDX-License-Identifier: Apache-2.0

// Links that go down, lose, delay and reorder: in the guest only, where the network is ours.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/steady_now.h"
#include "testing/fault_drills/drill.h"

namespace waybill::drills {
namespace {

class LinkDrill : public Drill {
 protected:
  void SetUp() override {
    if (!InGuest()) GTEST_SKIP() << "the network is not ours: see //testing/softroce";
    Drill::SetUp();
  }
  void TearDown() override {
    if (!InGuest()) return;
    Do("rxe_heal --all");
    Drill::TearDown();
  }

  // The peer's node; 0 is our own.
  static std::string Number(size_t node = 1) {
    const std::vector<std::string> nodes = absl::StrSplit(std::getenv("WAYBILL_RXE_NODES"), ';');
    return std::vector<std::string>(absl::StrSplit(nodes[node], ',')).front().substr(3);
  }
  static std::string Interface() { return "nd" + Number(); }
  static std::string OwnInterface() { return "nd" + Number(0); }
  static std::string SwitchPort() { return "p" + Number(); }

  static void Do(const std::string& command) {
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
  // While streams go on.
  void DoUnderWrites(const std::string& command) {
    std::atomic<bool> done = false;
    std::thread thread([&] {
      Do(command);
      done = true;
    });
    EXPECT_TRUE(Until([&] { return done.load(); }));
    thread.join();
  }
  // Affects what goes from the switch to the peer, but not the bystander's link.
  static void Netem(const std::string& how) {
    Do(absl::StrCat("tc -n sw qdisc replace dev ", SwitchPort(), " root netem ", how,
                    " limit 10000"));
  }
  static uint64_t Dropped() {
    FILE* pipe = popen(absl::StrCat("tc -n sw -s qdisc show dev ", SwitchPort()).c_str(), "r");
    std::string text(4096, '\0');
    text.resize(fread(text.data(), 1, text.size(), pipe));
    pclose(pipe);
    const size_t at = text.find("dropped ");
    return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + 8, nullptr, 10);
  }
  static uint64_t BytesAtInterface() {
    uint64_t bytes = 0;
    std::ifstream(absl::StrCat("/sys/class/net/", Interface(), "/statistics/rx_bytes")) >> bytes;
    return bytes;
  }
  void ExpectAllIsRight(const Link& link) {
    EXPECT_EQ(here().State(link.at_here).failed + here().State(link.at_here).refused, 0u)
        << here().fabric().LaneStatus(link.at_here);
    EXPECT_EQ(here().State(link.at_here).wrong, 0u);
    EXPECT_EQ(peer().State(link.at_peer).wrong, 0u);
  }
};

constexpr Shape kLarger = {.slots = 8, .write_bytes = 32 << 10};

TEST_P(LinkDrill, BytesCrossTheLink) {
  const uint64_t before = BytesAtInterface();
  const Link link = Connect(peer());
  SendTo(link, kLarger);
  AwaitComplete(link, 32);
  EXPECT_GT(BytesAtInterface() - before, 32u * kLarger.write_bytes);
}

TEST_P(LinkDrill, ItIsDownForAMoment) {
  const Link link = Connect(peer());
  SendTo(link);
  AwaitComplete(link, 32);
  DoUnderWrites(absl::StrCat("ip link set ", Interface(), " down; ip link set ", Interface(),
                             " up; rxe_heal"));
  // Either nothing is lost, or the lane is told dead.
  const uint64_t wanted = here().State(link.at_here).complete + 64;
  EXPECT_TRUE(Until([&] {
    const LaneState state = here().State(link.at_here);
    return state.complete >= wanted || state.failed + state.refused > 0;
  }));
  EXPECT_EQ(here().State(link.at_here).wrong, 0u);
  EXPECT_EQ(peer().State(link.at_peer).wrong, 0u);
  EXPECT_TRUE(here().Close(link.at_here).ok());
  ExpectNewLaneWorks();
}

TEST_P(LinkDrill, ItIsDown) {
  const Link out = Connect(peer());
  const Link in = Connect(peer());
  const uint32_t there = SendTo(out);
  const RegionId inbox = ReceiveFrom(in);
  AwaitComplete(out, 32);
  AwaitImmediates(in, 32);
  DoUnderWrites(absl::StrCat("ip link set ", Interface(), " down"));
  ExpectEnds(out, kDeadPeer);
  ExpectEnds(in, kDeadPeer);
  ExpectEndsAtPeer(out, kDeadPeer);
  ExpectEndsAtPeer(in, kDeadPeer);
  // Each end's memory is its own again.
  here().PoisonSource(out.at_here);
  here().Fill(inbox, kUntouched);
  DoUnderWrites(absl::StrCat("ip link set ", Interface(), " up; rxe_heal"));
  EXPECT_TRUE(here().Close(out.at_here).ok());
  EXPECT_TRUE(here().Close(in.at_here).ok());
  ExpectNewLaneWorks();
  EXPECT_EQ(CountAtPeer(there, kPoison), 0u);
  EXPECT_EQ(here().CountOf(inbox, kUntouched), Shape().size_bytes());
}

// All lanes of this end go by it, the bystander's too.
TEST_P(LinkDrill, OnesOwnIsDownAndUpAgain) {
  const Link out = Connect(peer());
  const Link in = Connect(peer());
  const uint32_t there = SendTo(out);
  const RegionId inbox = ReceiveFrom(in);
  AwaitComplete(out, 32);
  AwaitImmediates(in, 32);
  DoUnderWrites(absl::StrCat("ip link set ", OwnInterface(), " down"));
  const LaneState out_ended = ExpectToldDead(out, kDeadPeer);
  const LaneState in_ended = ExpectToldDead(in, kDeadPeer);
  ExpectEndsAtPeer(out, kDeadPeer);
  ExpectEndsAtPeer(in, kDeadPeer);
  ExpectBystanderEnds(kDeadPeer);
  here().PoisonSource(out.at_here);
  here().Fill(inbox, kUntouched);
  DoUnderWrites(absl::StrCat("ip link set ", OwnInterface(), " up; rxe_heal"));
  ExpectNothingSince(out, out_ended);
  ExpectNothingSince(in, in_ended);
  EXPECT_TRUE(here().Close(out.at_here).ok());
  EXPECT_TRUE(here().Close(in.at_here).ok());
  // A NIC is planned with again when its device says that it is back.
  const bool has_nics = GetParam() == "verbs";
  EXPECT_TRUE(EndsWithin(kDeadPeer, [&] { return !has_nics || !here().fabric().Nics().empty(); }));
  ConnectBystander();
  ExpectNewLaneWorks();
  EXPECT_EQ(CountAtPeer(there, kPoison), 0u);
  EXPECT_EQ(here().CountOf(inbox, kUntouched), Shape().size_bytes());
}

TEST_P(LinkDrill, ItLosesAPacketInAHundred) {
  const Link link = Connect(peer());
  SendTo(link, kLarger);
  Netem("loss 1%");
  // Asking takes a while, in which nobody polls.
  for (int i = 0; i < 50 && Dropped() < 2; ++i) AwaitComplete(link, 16);
  EXPECT_GE(Dropped(), 2u);
  AwaitComplete(link, 16);
  ExpectAllIsRight(link);
  ExpectNewLaneWorks();
}

TEST_P(LinkDrill, ItDelays) {
  const Link link = Connect(peer());
  SendTo(link, kLarger);
  AwaitComplete(link, 8);
  Netem("delay 100ms");
  AwaitComplete(link, 8);  // Those that left before.
  const absl::Time begin = SteadyNow();
  AwaitComplete(link, 16);
  EXPECT_GE(SteadyNow() - begin, absl::Milliseconds(100));
  ExpectAllIsRight(link);
}

TEST_P(LinkDrill, ItReorders) {
  const Link link = Connect(peer());
  SendTo(link, kLarger);
  AwaitComplete(link, 8);
  Netem("delay 1ms reorder 5% 50%");
  AwaitComplete(link, 64);
  ExpectAllIsRight(link);
  ExpectNewLaneWorks();
}

INSTANTIATE_TEST_SUITE_P(All, LinkDrill, testing::ValuesIn(NetworksHere()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace waybill::drills
