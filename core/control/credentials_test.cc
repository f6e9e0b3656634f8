// Tests who gets through a control channel, and what is heard by those who do not.

#include "core/control/credentials.h"

#include <grpcpp/security/tls_credentials_options.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "core/control/ask_controller.h"
#include "core/control/control.grpc.pb.h"
#include "core/control/controller.h"
#include "core/control/rank_stream.h"
#include "core/net/tcp_socket.h"

namespace waybill {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr char kToken[] = "5ab1e-token";

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
      {{kToken, "guess"}, {kToken, ""}, {"", kToken}, {kToken, std::string(kToken) + " "}}};
  for (const auto& [ours, theirs] : pairs) {
    const auto controller = StartController(ours);
    const absl::Status status = FetchStatus(controller->address(), theirs, kPatience).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
    EXPECT_EQ(status.message(),
              "controller " + controller->address() +
                  ": its token is another one; is this the job's controller, and is WAYBILL_TOKEN "
                  "the same on both sides?");
  }
}

absl::Status StatusOver(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                        const std::string& address) {
  const auto stub = proto::Controller::NewStub(grpc::CreateChannel(address, credentials));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  proto::StatusReply reply;
  const grpc::Status status = stub->GetStatus(&context, {}, &reply);
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
