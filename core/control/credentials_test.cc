// SPDX-License-Identifier: Apache-2.0

// Tests who gets through a control channel, and what is heard by those who do not.

#include "core/control/credentials.h"

#include <grpcpp/security/tls_credentials_options.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/rank_id.h"
#include "core/base/steady_now.h"
#include "core/base/unique_fd.h"
#include "core/control/ask_controller.h"
#include "core/control/control.grpc.pb.h"
#include "core/control/controller.h"
#include "core/control/grpc_deadline.h"
#include "core/control/identity.h"
#include "core/control/rank_stream.h"
#include "core/control/standby.h"
#include "core/net/tcp_socket.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr char kToken[] = "5ab1e-token-of-16";

std::unique_ptr<Controller> StartController(const std::string& token,
                                            const std::string& revoked = "") {
  auto controller = Controller::Start(
      {.coordinator = {.job = "j"}, .listen = "127.0.0.1:0", .token = token, .revoked = revoked});
  EXPECT_TRUE(controller.ok()) << controller.status();
  return *std::move(controller);
}

std::string KeyOf(KeyRole role, const std::string& group = "", const std::string& job = "j",
                  const std::string& secret = kToken) {
  return IssueKey(secret, {{role, job, group}, absl::Now(), absl::Now() + absl::Hours(1)}).value();
}

proto::RankMessage JoinAs(Role role, const std::string& group) {
  proto::RankMessage message;
  message.mutable_join()->set_protocol_version(kProtocolVersion);
  message.mutable_join()->set_job("j");
  message.mutable_join()->set_role(static_cast<uint32_t>(role));
  message.mutable_join()->set_world(1);
  message.mutable_join()->set_group(group);
  message.mutable_join()->set_mode(static_cast<uint32_t>(Mode::kShadow));
  message.mutable_join()->set_incarnation(1);
  return message;
}

// A rank that says nothing but that it joins.
class JoiningRank {
 public:
  JoiningRank(const Controller& controller, const std::string& token, Role role,
              const std::string& group)
      : stream_(RankStream::Open(
            controller.address(), token, kPatience,
            [this](const std::vector<proto::ControllerMessage>& messages) {
              for (const auto& message : messages) {
                if (message.has_dismissal()) End(DecodeError(message.dismissal().error()));
              }
            },
            [this](const absl::Status& status) { End(status); })) {
    stream_->Send(JoinAs(role, group));
  }

  // Waits until the rank is dismissed, or its stream ends.
  absl::Status End() { return ended_.get_future().get(); }

 private:
  void End(const absl::Status& why) {
    if (!std::exchange(over_, true)) ended_.set_value(why);
  }

  std::promise<absl::Status> ended_;
  bool over_ = false;
  std::unique_ptr<RankStream> stream_;
};

// Waits until the controller has admitted that many ranks.
void AwaitRanks(const Controller& controller, int count) {
  const absl::Time deadline = SteadyNow() + kPatience;
  while (controller.status().ranks_size() < count && SteadyNow() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(controller.status().ranks_size(), count);
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

TEST(ControlChannel, WithAWorkersKeyOneJoinsItsGroupAndReadsTheTensorsAndNothingElse) {
  const auto controller = StartController(kToken);
  const std::string& address = controller->address();
  const std::string key = KeyOf(KeyRole::kWorker, "a");
  const auto denied = absl::StatusCode::kPermissionDenied;
  EXPECT_EQ(FetchStatus(address, key, kPatience).status().code(), denied);
  EXPECT_EQ(RemoveGroup(address, key, "a", kPatience).status().code(), denied);
  EXPECT_EQ(VerifyWorkers(address, key, "a", kPatience).status().code(), denied);
  EXPECT_EQ(JoiningRank(*controller, key, Role::kTrainer, "").End().code(), denied);
  EXPECT_EQ(JoiningRank(*controller, key, Role::kWorker, "b").End().message(),
            "join as a worker of group \"b\": the key is that of a worker of group \"a\" in job "
            "\"j\"; use the key of a worker of that group");
  EXPECT_EQ(IssueKey(key, {{KeyRole::kTrainer, "j"}, absl::Now(), absl::Now() + absl::Hours(1)})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Controller::Start({.coordinator = {.job = "j"}, .listen = "127.0.0.1:0", .token = key})
                .status()
                .message(),
            "controller: the key is that of a worker of group \"a\" in job \"j\"; use the job's "
            "secret or the key of a controller");

  proto::Question tensors;
  tensors.set_tensors(true);
  const auto channel = OpenChannel(address, key, grpc::ChannelArguments());
  grpc::ClientContext context;
  context.set_deadline(ToGrpcDeadline(SteadyNow() + kPatience));
  proto::Answer answer;
  ASSERT_TRUE(proto::Controller::NewStub(*channel)->Ask(&context, tensors, &answer).ok());
  EXPECT_EQ(answer.error().message(), "every trainer");  // The controller waits for them.
  const JoiningRank worker(*controller, key, Role::kWorker, "a");
  AwaitRanks(*controller, 1);
}

TEST(ControlChannel, EachRoleIsServedByAControllerThatHasAKeyOnly) {
  const auto controller = StartController(KeyOf(KeyRole::kController));
  const std::string& address = controller->address();
  for (const std::string& token : {std::string(kToken), KeyOf(KeyRole::kTrainer),
                                   KeyOf(KeyRole::kObserver), KeyOf(KeyRole::kOperator)}) {
    EXPECT_EQ(FetchStatus(address, token, kPatience).status().message(), "");
  }
  EXPECT_EQ(RemoveGroup(address, KeyOf(KeyRole::kOperator), "a", kPatience).status().code(),
            absl::StatusCode::kNotFound);
  const JoiningRank trainer(*controller, KeyOf(KeyRole::kTrainer), Role::kTrainer, "");
  const JoiningRank worker(*controller, KeyOf(KeyRole::kWorker, "a"), Role::kWorker, "a");
  AwaitRanks(*controller, 2);
}

TEST(ControlChannel, AKeyOfAnotherJobOrSecretIsRefused) {
  const auto controller = StartController(kToken);
  EXPECT_EQ(FetchStatus(controller->address(), KeyOf(KeyRole::kOperator, "", "k"), kPatience)
                .status()
                .message(),
            "the key is that of an operator in job \"k\", and this is job \"j\"");
  EXPECT_EQ(FetchStatus(controller->address(),
                        KeyOf(KeyRole::kOperator, "", "j", "another secret of 16"), kPatience)
                .status()
                .code(),
            absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Controller::Start({.coordinator = {.job = "j"},
                               .listen = "127.0.0.1:0",
                               .token = KeyOf(KeyRole::kController, "", "k")})
                .status()
                .message(),
            "the key is that of a controller in job \"k\", and this is job \"j\"");
}

TEST(ControlChannel, KeysThatTrustTwoAuthoritiesBridgeTheReplacementOfASecret) {
  constexpr char kNew[] = "another secret of 16";
  const auto authority = [](const std::string& secret) {
    return IdentityOf(secret, absl::Now())->authorities;
  };
  const auto controller = StartController(KeyOf(KeyRole::kController) + authority(kNew));
  EXPECT_EQ(
      FetchStatus(controller->address(), KeyOf(KeyRole::kOperator), kPatience).status().message(),
      "");
  const std::string renewed = KeyOf(KeyRole::kOperator, "", "j", kNew);
  EXPECT_EQ(
      FetchStatus(controller->address(), renewed + authority(kToken), kPatience).status().message(),
      "");
  EXPECT_EQ(FetchStatus(controller->address(), renewed, kPatience).status().code(),
            absl::StatusCode::kUnauthenticated);
}

// A server that does not ask whether its key is a controller's.
TEST(ControlChannel, WithARanksKeyNobodyIsTakenForTheController) {
  for (const KeyRole role : {KeyRole::kTrainer, KeyRole::kOperator}) {
    const Identity rank = IdentityOf(KeyOf(role), absl::Now()).value();
    grpc::SslServerCredentialsOptions options(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = rank.authorities;
    options.pem_key_cert_pairs = {{rank.private_key, rank.certificates}};
    proto::Controller::CallbackService service;
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
    builder.RegisterService(&service);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    for (const std::string& token : {std::string(kToken), KeyOf(KeyRole::kWorker, "a")}) {
      EXPECT_EQ(FetchStatus(absl::StrCat("127.0.0.1:", port), token, kPatience).status().code(),
                absl::StatusCode::kUnauthenticated);
    }
  }
}

TEST(ControlChannel, AnExpiredKeyIsRefusedByTheControllerToo) {
  const auto controller = StartController(kToken);
  const absl::Time now = absl::Now();
  const std::string expired =
      IssueKey(kToken, {{KeyRole::kOperator, "j"}, now - absl::Hours(2), now - absl::Hours(1)})
          .value();
  EXPECT_EQ(FetchStatus(controller->address(), expired, kPatience).status().code(),
            absl::StatusCode::kUnauthenticated);
  // On a host whose clock is late.
  const Identity late = IdentityOf(expired, now - absl::Minutes(90)).value();
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride(kControllerName);
  const auto stub = proto::Controller::NewStub(
      grpc::CreateCustomChannel(controller->address(),
                                grpc::SslCredentials({.pem_root_certs = late.authorities,
                                                      .pem_private_key = late.private_key,
                                                      .pem_cert_chain = late.certificates}),
                                arguments));
  grpc::ClientContext context;
  context.set_deadline(ToGrpcDeadline(SteadyNow() + kPatience));
  proto::Answer answer;
  const grpc::Status status = stub->Ask(&context, {}, &answer);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(absl::StrContains(ChannelError("there", status).message(),
                                "do the clocks of both hosts say that the key is valid?"))
      << status.error_message();
}

TEST(ControlChannel, ARevokedKeyIsDismissedAtOnceAndServedNoMore) {
  const std::string path = testing::TempDir() + "revoked_by_controller";
  std::ofstream(path) << "# none\n";
  const auto controller = StartController(kToken, path);
  const std::string key = KeyOf(KeyRole::kTrainer);
  JoiningRank trainer(*controller, key, Role::kTrainer, "");
  AwaitRanks(*controller, 1);
  const Identity identity = IdentityOf(key, absl::Now()).value();
  const std::string serial = Describe(identity.certificates, identity.authorities)->serial;
  std::ofstream(path) << serial << " stolen\n";
  const std::string why =
      "the key is that of a trainer in job \"j\", and is revoked (serial " + serial + ")";
  EXPECT_EQ(trainer.End().message(), why);
  EXPECT_EQ(FetchStatus(controller->address(), key, kPatience).status().message(), why);
  EXPECT_EQ(JoiningRank(*controller, key, Role::kTrainer, "").End().message(), why);
  EXPECT_EQ(controller->status().ranks_size(), 0);
  const JoiningRank other(*controller, KeyOf(KeyRole::kTrainer), Role::kTrainer, "");
  AwaitRanks(*controller, 1);
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
