// SPDX-License-Identifier: Apache-2.0

// Tests who gets through a control channel, and what is heard by those who do not.

#include "core/control/credentials.h"

#include <grpcpp/security/tls_credentials_options.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/steady_now.h"
#include "core/base/unique_fd.h"
#include "core/control/ask_controller.h"
#include "core/control/control.grpc.pb.h"
#include "core/control/controller.h"
#include "core/control/grpc_deadline.h"
#include "core/control/rank_stream.h"
#include "core/control/standby.h"
#include "core/net/tcp_socket.h"

namespace waybill {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr char kToken[] = "5ab1e-token-of-16";

std::unique_ptr<Controller> StartController(const std::string& token) {
  auto controller = Controller::Start({.listen = "127.0.0.1:0", .token = token});
  EXPECT_TRUE(controller.ok()) << controller.status();
  return *std::move(controller);
}

TEST(ControlChannel, WhoeverKnowsTheTokenIsServed) {
  for (const std::string& token : {std::string(kToken), std::string(), std::string(5000, 'x')}) {
    const auto controller = StartController(token);
    EXPECT_EQ(FetchStatus(controller->address(), token, kPatience).status().message(), "");
  }
}

TEST(ControlChannel, AnotherTokenIsRefusedWhicheverSideHasNone) {
  const std::array<std::pair<std::string, std::string>, 4> pairs = {
      {{kToken, "a guess of the token"},
       {kToken, ""},
       {"", kToken},
       {kToken, std::string(kToken) + " "}}};
  for (const auto& [ours, theirs] : pairs) {
    const auto controller = StartController(ours);
    testing::internal::CaptureStderr();
    const absl::Status status = FetchStatus(controller->address(), theirs, kPatience).status();
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
    EXPECT_EQ(status.message(),
              "controller " + controller->address() +
                  ": its token is another one; is this the job's controller, and is WAYBILL_TOKEN "
                  "the same on both sides? Without it, each user has a token of their own");
  }
}

TEST(ControlChannel, GoesThroughNoProxy) {
  for (const char* name : {"http_proxy", "https_proxy", "grpc_proxy"}) {
    setenv(name, "http://127.0.0.1:1", 1);
    const auto controller = StartController(kToken);
    EXPECT_EQ(FetchStatus(controller->address(), kToken, kPatience).status().message(), "") << name;
    unsetenv(name);
  }
}

TEST(ControlChannel, AShortTokenIsRefusedOnBothSides) {
  EXPECT_EQ(Controller::Start({.listen = "127.0.0.1:0", .token = "5ab1e"}).status().code(),
            absl::StatusCode::kUnauthenticated);
  const auto controller = StartController(kToken);
  EXPECT_EQ(FetchStatus(controller->address(), "5ab1e", kPatience).status().code(),
            absl::StatusCode::kUnauthenticated);
}

TEST(ControlChannel, StrangersMakeRoomForThoseWhoKnowTheToken) {
  const auto controller = Controller::Start({.listen = "127.0.0.1:0",
                                             .token = kToken,
                                             .stranger_timeout = absl::Hours(1),
                                             .most_strangers = 4});
  ASSERT_TRUE(controller.ok()) << controller.status();
  const net::HostPort address = *net::ParseHostPort((*controller)->address());
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(*net::BeginConnect(address));
    pollfd connected{.fd = strangers.back().get(), .events = POLLOUT, .revents = 0};
    ASSERT_EQ(poll(&connected, 1, absl::ToInt64Milliseconds(kPatience)), 1);
    EXPECT_EQ(FetchStatus((*controller)->address(), kToken, kPatience).status().message(), "");
  }
  for (size_t i = 0; i < 16; ++i) {  // The oldest are gone.
    pollfd closed{.fd = strangers[i].get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&closed, 1, absl::ToInt64Milliseconds(kPatience)), 1) << i;
  }
  for (size_t i = 17; i < 20; ++i) {  // The newest wait.
    pollfd open{.fd = strangers[i].get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&open, 1, /*timeout=*/0), 0) << i;
  }
}

TEST(ControlChannel, AStandbySaysWhoLeadsAndTheLeaderIsAskedNext) {
  const std::string address =
      net::ToString(net::Listen({"127.0.0.1", 0})->address);  // Is free now.
  const auto standby = Standby::Start(address, kToken, "rl");
  ASSERT_TRUE(standby.ok()) << standby.status();
  const auto leader = StartController(kToken);
  (*standby)->SetLeader(leader->address());
  EXPECT_EQ(FetchStatus(address, kToken, kPatience).status(),
            absl::UnavailableError(
                "controller " + address + ": it is a standby of job \"rl\"; the leader is " +
                leader->address() + "; give ranks and commands the addresses of all controllers"));
  EXPECT_EQ(FetchStatus(address, "a guess of the token", kPatience).status().code(),
            absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(FetchStatus(address + "," + leader->address(), kToken, kPatience).status().message(),
            "");
}

TEST(ControlChannel, AnAddressOfIpv6CanBeUsed) {
  const auto controller = Controller::Start({.listen = "::1:0", .token = kToken});
  if (!controller.ok()) GTEST_SKIP() << controller.status();
  EXPECT_EQ((*controller)->address().substr(0, 6), "[::1]:");
  EXPECT_EQ(FetchStatus((*controller)->address(), kToken, kPatience).status().message(), "");
}

absl::Status StatusOver(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                        const std::string& address) {
  const auto stub = proto::Controller::NewStub(grpc::CreateChannel(address, credentials));
  grpc::ClientContext context;
  context.set_deadline(ToGrpcDeadline(SteadyNow() + kPatience));
  proto::Answer answer;
  const grpc::Status status = stub->Ask(&context, {}, &answer);
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

TEST(ControlChannel, AStrangerThatTrustsAnybodyIsNotServed) {
  const auto controller = StartController(kToken);
  EXPECT_EQ(StatusOver(grpc::InsecureChannelCredentials(), controller->address()).code(),
            absl::StatusCode::kUnavailable);
  grpc::experimental::TlsChannelCredentialsOptions trusting;
  trusting.set_verify_server_certs(false);
  trusting.set_check_call_host(false);
  EXPECT_EQ(StatusOver(grpc::experimental::TlsCredentials(trusting), controller->address()).code(),
            absl::StatusCode::kUnavailable);
}

// The first that a peer says, who is then hung up on.
std::string Overhear(int listener) {
  pollfd door{.fd = listener, .events = POLLIN, .revents = 0};
  if (poll(&door, 1, absl::ToInt64Milliseconds(kPatience)) != 1) return "";
  const UniqueFd peer(accept(listener, nullptr, nullptr));
  std::array<char, 4096> buffer;
  const ssize_t size = recv(peer.get(), buffer.data(), buffer.size(), 0);
  return size < 0 ? "" : std::string(buffer.data(), static_cast<size_t>(size));
}

TEST(ControlChannel, WhoeverListensInTheControllersPlaceHearsNeitherTokenNorMessage) {
  absl::StatusOr<net::Listener> door = net::Listen({"127.0.0.1", 0});
  ASSERT_TRUE(door.ok()) << door.status();
  std::future<std::string> heard =
      std::async(std::launch::async, [&] { return Overhear(door->socket.get()); });
  std::promise<absl::Status> ended;
  const auto stream = RankStream::Open(
      net::ToString(door->address), kToken, absl::Seconds(20),
      [](const std::vector<proto::ControllerMessage>&) {},
      [&](const absl::Status& status) { ended.set_value(status); });
  proto::RankMessage message;
  message.mutable_join()->set_job("name-of-the-job");
  stream->Send(message);
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kUnavailable);
  const std::string bytes = heard.get();
  EXPECT_FALSE(bytes.empty());
  EXPECT_EQ(bytes.find(kToken), std::string::npos);
  EXPECT_EQ(bytes.find("name-of-the-job"), std::string::npos);
}

}  // namespace
}  // namespace waybill
