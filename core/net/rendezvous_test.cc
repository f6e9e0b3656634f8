// SPDX-License-Identifier: Apache-2.0

#include "core/net/rendezvous.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>

#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/base/steady_now.h"

namespace waybill::net {
namespace {

// One process, as far as the network can tell.
class Place {
 public:
  explicit Place(absl::Duration timeout = absl::Seconds(20), size_t most_strangers = 1024)
      : epoll_(epoll_create1(0)),
        rendezvous_(
            *Rendezvous::Create("127.0.0.1", epoll_.get(), timeout, SteadyNow(), most_strangers)) {}

  Rendezvous& operator*() { return *rendezvous_; }
  Rendezvous* operator->() { return rendezvous_.get(); }

  void Step(absl::Time now = SteadyNow()) {
    std::array<epoll_event, 16> events;
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), 0);
    for (int i = 0; i < count; ++i) (void)rendezvous_->Handle(events[i].data.fd);
    rendezvous_->Expire(now);
    for (Rendezvous::Met& one : rendezvous_->TakeMet()) met.push_back(std::move(one));
  }

  std::vector<Rendezvous::Met> met;

 private:
  UniqueFd epoll_;
  std::unique_ptr<Rendezvous> rendezvous_;
};

template <typename Done>
bool Until(std::vector<Place*> places, Done done) {
  const absl::Time deadline = SteadyNow() + absl::Seconds(20);
  while (!done()) {
    if (SteadyNow() > deadline) return false;
    for (Place* place : places) place->Step();
  }
  return true;
}

std::string Say(const UniqueFd& from, const UniqueFd& to, const std::string& text) {
  EXPECT_EQ(*Send(from.get(), {reinterpret_cast<const std::byte*>(text.data()), text.size()}),
            text.size());
  pollfd ready{.fd = to.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ready, 1, 10'000), 1);
  std::array<std::byte, 64> heard;
  const size_t size = *Receive(to.get(), absl::MakeSpan(heard));
  return {reinterpret_cast<const char*>(heard.data()), size};
}

TEST(Rendezvous, BothEndsMeetWhicheverOfThemComesFirst) {
  for (const bool a_first : {true, false}) {
    Place a, b;
    const std::string at_a = *a->Open(1), at_b = *b->Open(7);
    Place& first = a_first ? a : b;
    ASSERT_TRUE(first->Connect(a_first ? 1 : 7, a_first ? at_b : at_a).ok());
    for (int i = 0; i < 100; ++i) {
      a.Step();
      b.Step();
    }
    EXPECT_TRUE(a.met.empty() && b.met.empty());
    Place& second = a_first ? b : a;
    ASSERT_TRUE(second->Connect(a_first ? 7 : 1, a_first ? at_a : at_b).ok());
    ASSERT_TRUE(Until({&a, &b}, [&] { return a.met.size() == 1 && b.met.size() == 1; }));
    ASSERT_TRUE(a.met[0].socket.ok() && b.met[0].socket.ok());
    EXPECT_EQ(a.met[0].end, 1u);
    EXPECT_EQ(b.met[0].end, 7u);
    EXPECT_EQ(Say(*a.met[0].socket, *b.met[0].socket, "hello"), "hello");
    EXPECT_EQ(Say(*b.met[0].socket, *a.met[0].socket, "good day"), "good day");
  }
}

TEST(Rendezvous, ManyPairsMeetAndNoneIsMixedUp) {
  Place a, b;
  std::vector<std::string> at_a, at_b;
  for (uint32_t i = 0; i < 40; ++i) {
    at_a.push_back(*a->Open(i));
    at_b.push_back(*b->Open(100 + i));
  }
  for (uint32_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(a->Connect(i, at_b[i]).ok());
    ASSERT_TRUE(b->Connect(100 + i, at_a[i]).ok());
  }
  ASSERT_TRUE(Until({&a, &b}, [&] { return a.met.size() == 40 && b.met.size() == 40; }));
  for (const Rendezvous::Met& one : a.met) {
    for (const Rendezvous::Met& other : b.met) {
      if (other.end != 100 + one.end) continue;
      const std::string text = "pair " + std::to_string(one.end);
      EXPECT_EQ(Say(*one.socket, *other.socket, text), text);
    }
  }
}

TEST(Rendezvous, AnEndWhosePeerIsGoneIsToldWhicheverWouldDial) {
  for (int i = 0; i < 8; ++i) {
    Place a;
    const std::string at_a = *a->Open(1);
    std::string at_b;
    {
      Place b;
      at_b = *b->Open(1);
    }
    ASSERT_TRUE(a->Connect(1, at_b).ok());
    ASSERT_TRUE(Until({&a}, [&] { return a.met.size() == 1; }));
    EXPECT_TRUE(absl::IsUnavailable(a.met[0].socket.status())) << a.met[0].socket.status();
  }
}

TEST(Rendezvous, APeerThatNeverConnectsIsGivenUpAtTheDeadline) {
  Place a(absl::Seconds(5)), b;
  (void)*a->Open(1);
  ASSERT_TRUE(a->Connect(1, *b->Open(1)).ok());
  a.Step(SteadyNow() + absl::Seconds(4));
  EXPECT_TRUE(a.met.empty());
  a.Step(SteadyNow() + absl::Seconds(6));
  ASSERT_EQ(a.met.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(a.met[0].socket.status())) << a.met[0].socket.status();
}

TEST(Rendezvous, StrangersAreTurnedAwayWhateverTheySay) {
  Place a, b;
  const std::string at_a = *a->Open(1), at_b = *b->Open(2);
  const HostPort door = *ParseHostPort(at_a.substr(0, at_a.find('/')));
  std::mt19937 random(3);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 50; ++i) {
    UniqueFd stranger = *BeginConnect(door);
    pollfd ready{.fd = stranger.get(), .events = POLLOUT, .revents = 0};
    ASSERT_EQ(poll(&ready, 1, 10'000), 1);
    std::vector<std::byte> noise(1 + random() % 200);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    (void)Send(stranger.get(), noise);
    strangers.push_back(std::move(stranger));
    a.Step();
  }
  ASSERT_TRUE(a->Connect(1, at_b).ok());
  ASSERT_TRUE(b->Connect(2, at_a).ok());
  ASSERT_TRUE(Until({&a, &b}, [&] { return a.met.size() == 1 && b.met.size() == 1; }));
  EXPECT_TRUE(a.met[0].socket.ok());
  EXPECT_EQ(Say(*a.met[0].socket, *b.met[0].socket, "still us"), "still us");
  EXPECT_GT(a->refused(), 10u);
}

UniqueFd Knock(const std::string& address) {
  UniqueFd stranger = *BeginConnect(*ParseHostPort(address.substr(0, address.find('/'))));
  pollfd ready{.fd = stranger.get(), .events = POLLOUT, .revents = 0};
  EXPECT_EQ(poll(&ready, 1, 10'000), 1);
  return stranger;
}

TEST(Rendezvous, AnEndThatIsTurnedAwayBecauseOfTooManyStrangersDialsAgain) {
  for (int i = 0; i < 4; ++i) {  // Either may have the smaller address, and dial.
    Place a(absl::Seconds(20), 2), b(absl::Seconds(20), 2);
    const std::string at_a = *a->Open(1), at_b = *b->Open(1);
    ASSERT_TRUE(a->Connect(1, at_b).ok());
    ASSERT_TRUE(b->Connect(1, at_a).ok());
    std::vector<UniqueFd> strangers;
    for (int n = 0; n < 4; ++n) {  // They come before anybody has said hello.
      strangers.push_back(Knock(at_a));
      strangers.push_back(Knock(at_b));
    }
    ASSERT_TRUE(Until({&a, &b}, [&] { return a.met.size() == 1 && b.met.size() == 1; }));
    EXPECT_TRUE(a.met[0].socket.ok()) << a.met[0].socket.status();
    EXPECT_TRUE(b.met[0].socket.ok()) << b.met[0].socket.status();
  }
}

TEST(Rendezvous, WhoSaysHelloAtOnceIsNotOneStrangerTooMany) {
  Place a(absl::Seconds(20), 2), b;
  std::vector<std::string> at_a, at_b;
  for (uint32_t i = 0; i < 40; ++i) {
    at_a.push_back(*a->Open(i));
    at_b.push_back(*b->Open(i));
    ASSERT_TRUE(b->Connect(i, at_a[i]).ok());
  }
  for (int i = 0; i < 100; ++i) b.Step();  // All have dialed, and some have said hello.
  for (uint32_t i = 0; i < 40; ++i) ASSERT_TRUE(a->Connect(i, at_b[i]).ok());
  ASSERT_TRUE(Until({&a, &b}, [&] { return a.met.size() == 40 && b.met.size() == 40; }));
  for (const Rendezvous::Met& one : a.met) EXPECT_TRUE(one.socket.ok()) << one.socket.status();
  EXPECT_EQ(a->refused(), 0u);
}

TEST(Rendezvous, WhoKnowsOneSecretAndNotTheOtherIsRefused) {
  Place a, b, thief;
  const std::string at_a = *a->Open(1), at_b = *b->Open(1), at_thief = *thief->Open(1);
  // The thief read a's address, and dials with a secret of its own.
  ASSERT_TRUE(a->Connect(1, at_b).ok());
  ASSERT_TRUE(thief->Connect(1, at_a).ok());
  for (int i = 0; i < 2000 && a.met.empty(); ++i) {
    a.Step();
    thief.Step();
  }
  for (const Rendezvous::Met& met : a.met) EXPECT_FALSE(met.socket.ok());
  for (const Rendezvous::Met& met : thief.met) EXPECT_FALSE(met.socket.ok());
}

TEST(Rendezvous, AClosedEndMeetsNobody) {
  Place a, b;
  const std::string at_a = *a->Open(1), at_b = *b->Open(1);
  ASSERT_TRUE(a->Connect(1, at_b).ok());
  a->Close(1);
  ASSERT_TRUE(b->Connect(1, at_a).ok());
  for (int i = 0; i < 1000; ++i) {
    a.Step();
    b.Step();
  }
  EXPECT_TRUE(a.met.empty());
  for (const Rendezvous::Met& met : b.met) EXPECT_FALSE(met.socket.ok());
  EXPECT_FALSE(a->Connect(1, at_b).ok());
}

TEST(Rendezvous, WhatIsNoAddressIsRefused) {
  Place a;
  (void)*a->Open(1);
  for (const char* address : {"", "/", "x", "127.0.0.1:80", "127.0.0.1:80/short", "127.0.0.1/",
                              ":80/0123456789abcdef0123456789abcdef"}) {
    EXPECT_EQ(a->Connect(1, address).code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

}  // namespace
}  // namespace waybill::net
