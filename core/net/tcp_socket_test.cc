// SPDX-License-Identifier: Apache-2.0

#include "core/net/tcp_socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <set>
#include <vector>

namespace waybill::net {
namespace {

void AwaitReady(int fd, int16_t events) {
  pollfd ready{.fd = fd, .events = events, .revents = 0};
  ASSERT_EQ(poll(&ready, 1, 10'000), 1);
}

struct Pair {
  Listener listener;
  UniqueFd near;
  UniqueFd far;
};

Pair Connected(const std::string& host) {
  Pair pair{.listener = *Listen({.host = host}), .near = {}, .far = {}};
  pair.near = *BeginConnect(pair.listener.address);
  AwaitReady(pair.listener.socket.get(), POLLIN);
  pair.far = Accept(pair.listener.socket.get());
  AwaitReady(pair.near.get(), POLLOUT);
  EXPECT_TRUE(FinishConnect(pair.near.get(), pair.listener.address).ok());
  return pair;
}

TEST(TcpSocket, AddressesReadBackAsTheyWereWritten) {
  for (const char* text : {"10.0.0.1:7070", "[::1]:1", "[fe80::1%eth0]:65535", "host:0"}) {
    const auto address = ParseHostPort(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(ToString(*address), text);
  }
  for (const char* text : {"", ":", ":80", "host", "host:", "host:x", "host:65536", "host:-1"}) {
    EXPECT_EQ(ParseHostPort(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(TcpSocket, BytesComeInOrderAndAFullSocketTakesNoMore) {
  const Pair pair = Connected("127.0.0.1");
  std::vector<std::byte> out(1 << 20);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i * 7 + (i >> 9));
  size_t sent = 0;
  for (size_t n = 1; n != 0; sent += n) {
    n = *Send(pair.near.get(), absl::MakeConstSpan(out).subspan(sent % out.size()));
    ASSERT_LT(sent, size_t{1} << 30) << "it never fills";
  }
  std::vector<std::byte> in(4096);
  EXPECT_EQ(*Receive(pair.near.get(), absl::MakeSpan(in)), 0u);
  for (size_t received = 0; received < sent;) {
    AwaitReady(pair.far.get(), POLLIN);
    const size_t n = *Receive(pair.far.get(), absl::MakeSpan(in));
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(in[i], out[(received + i) % out.size()]);
    received += n;
  }
}

TEST(TcpSocket, PartsAreSentAndReceivedInOrder) {
  const Pair pair = Connected("127.0.0.1");
  char out[] = "one two";
  const iovec parts[] = {{out, 3}, {nullptr, 0}, {out + 3, 4}};
  ASSERT_EQ(*SendParts(pair.near.get(), parts), 7u);
  char in[8] = {};
  const iovec rest[] = {{in, 5}, {in + 5, 3}};
  AwaitReady(pair.far.get(), POLLIN);
  EXPECT_EQ(*ReceiveParts(pair.far.get(), rest), 7u);
  EXPECT_STREQ(in, "one two");
  EXPECT_EQ(*ReceiveParts(pair.far.get(), rest), 0u);
}

TEST(TcpSocket, WhatIsDiscardedIsGone) {
  Pair pair = Connected("127.0.0.1");
  const std::vector<std::byte> out(100'000);
  const size_t sent = *Send(pair.near.get(), out);
  ASSERT_GT(sent, 0u);
  AwaitReady(pair.far.get(), POLLIN);
  EXPECT_TRUE(Discard(pair.far.get()).ok());
  pair.near.Reset();
  absl::Status status;
  while (status.ok()) {
    AwaitReady(pair.far.get(), POLLIN);
    status = Discard(pair.far.get());
  }
  EXPECT_TRUE(absl::IsAborted(status));
}

// Binds the one end to the port that it then connects to, which the system may do by chance.
TEST(TcpSocket, ASocketThatMetItselfIsNotConnected) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(own);
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&own), size), 0);
  ASSERT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
  ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&own), size), 0);
  EXPECT_TRUE(absl::IsUnavailable(
      FinishConnect(fd.get(), {.host = "127.0.0.1", .port = ntohs(own.sin_port)})));
}

std::string PeerSeen(const HostPort& listener, int accepting, const std::string& from) {
  const UniqueFd near = *BeginConnect(listener, from);
  AwaitReady(accepting, POLLIN);
  const UniqueFd far = Accept(accepting);
  sockaddr_in peer{};
  socklen_t size = sizeof(peer);
  EXPECT_EQ(getpeername(far.get(), reinterpret_cast<sockaddr*>(&peer), &size), 0);
  char text[INET_ADDRSTRLEN];
  return inet_ntop(AF_INET, &peer.sin_addr, text, sizeof(text));
}

TEST(TcpSocket, AConnectionLeavesFromTheAddressThatWasSaid) {
  const Listener listener = *Listen({.host = "127.0.0.1"});
  const int accepting = listener.socket.get();
  EXPECT_EQ(PeerSeen(listener.address, accepting, "127.0.0.7"), "127.0.0.7");
  EXPECT_EQ(PeerSeen(listener.address, accepting, ""), "127.0.0.1");
  EXPECT_EQ(PeerSeen(listener.address, accepting, "::1"), "127.0.0.1");
  // An address of somebody else: documentation has this one.
  const absl::Status status = BeginConnect(listener.address, "192.0.2.1").status();
  EXPECT_NE(status.message().find("connect from 192.0.2.1"), absl::string_view::npos) << status;
}

TEST(TcpSocket, APeerThatIsGoneIsTold) {
  Pair pair = Connected("::1");
  pair.far.Reset();
  AwaitReady(pair.near.get(), POLLIN);
  std::byte byte{};
  EXPECT_TRUE(absl::IsAborted(Receive(pair.near.get(), absl::MakeSpan(&byte, 1)).status()));
}

TEST(TcpSocket, NobodyListeningIsUnavailable) {
  HostPort nobody;
  {
    nobody = Listen({.host = "127.0.0.1"})->address;
  }
  absl::StatusOr<UniqueFd> fd = BeginConnect(nobody);
  absl::Status status = fd.status();
  if (fd.ok()) {
    AwaitReady(fd->get(), POLLOUT);
    status = FinishConnect(fd->get(), nobody);
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find(ToString(nobody)), absl::string_view::npos) << status;
}

TEST(TcpSocket, TheAddressTowardsThisHostIsThisHosts) {
  EXPECT_EQ(*OwnAddressTowards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(OwnAddressTowards("no such host").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TcpSocket, ANameHasANumericAddress) {
  EXPECT_EQ(*NumericAddress("10.1.2.3"), "10.1.2.3");
  const auto local = NumericAddress("localhost");
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_TRUE(*local == "127.0.0.1" || *local == "::1") << *local;
  EXPECT_EQ(NumericAddress("no such host").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TcpSocket, SecretsDiffer) {
  std::set<std::string> secrets;
  for (int i = 0; i < 100; ++i) secrets.insert(*RandomSecret());
  EXPECT_EQ(secrets.size(), 100u);
  EXPECT_EQ(secrets.begin()->size(), 32u);
}

TEST(TcpSocket, APeerThatDoesNotReadStillAnswers) {
  const Pair pair = Connected("127.0.0.1");
  ASSERT_TRUE(SetKeepAlive(pair.near.get(), 1).ok());
  EXPECT_FALSE(AnswersOf(pair.near.get()).are_owed);
  const std::vector<std::byte> out(1 << 20);
  while (*Send(pair.near.get(), out) > 0) continue;
  // Two minutes of silence would be the kernel's measure, one second is that of the option.
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() < begin + std::chrono::milliseconds(2500)) {
    pollfd gone{.fd = pair.near.get(), .events = POLLRDHUP, .revents = 0};
    ASSERT_EQ(poll(&gone, 1, 50), 0) << "the connection has ended";
    const Answers answers = AnswersOf(pair.near.get());
    EXPECT_FALSE(answers.are_owed && answers.last_ago > std::chrono::milliseconds(1900));
  }
}

TEST(TcpSocket, AReadableSocketHasAsMuchAsWasAskedFor) {
  const Pair pair = Connected("127.0.0.1");
  ASSERT_TRUE(SetReadableAt(pair.far.get(), 1000).ok());
  const std::vector<std::byte> out(500);
  ASSERT_EQ(*Send(pair.near.get(), out), 500u);
  pollfd ready{.fd = pair.far.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ready, 1, 50), 0);
  ASSERT_EQ(*Send(pair.near.get(), out), 500u);
  AwaitReady(pair.far.get(), POLLIN);
}

TEST(TcpSocket, ALackOfDescriptorsIsToldWithItsLimit) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = BeginConnect({.host = "127.0.0.1", .port = 9}).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.message(),
            "socket: Too many open files (errno 24); this process may open no more files (ulimit "
            "-n; LimitNOFILE= in a systemd unit)");
}

TEST(OwnAddress, ANameOfThisHostThatStandsForLoopbackIsNotOffered) {
  EXPECT_TRUE(HidesBehindLoopback("node-a", "127.0.1.1"));
  EXPECT_TRUE(HidesBehindLoopback("node-a", "::1"));
  EXPECT_FALSE(HidesBehindLoopback("node-a", "10.0.0.1"));
  EXPECT_FALSE(HidesBehindLoopback("localhost", "127.0.0.1"));
  EXPECT_FALSE(HidesBehindLoopback("127.0.0.1", "127.0.0.1"));
  EXPECT_FALSE(HidesBehindLoopback("::1", "::1"));
}

}  // namespace
}  // namespace waybill::net
