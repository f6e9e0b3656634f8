// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/doctor/measure_peer.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/control/job_token.h"
#include "core/fabric/choice/make_fabric.h"
#include "core/net/tcp_socket.h"
#include "tools/waybill/doctor/line_channel.h"

namespace waybill {
namespace {

constexpr uint64_t kRegionBytes = 64 << 20;
constexpr uint64_t kLargestWrite = 8 << 20;
constexpr absl::Duration kPatience = absl::Seconds(40);
constexpr size_t kMostStrangers = 16;
constexpr absl::Duration kStrangerPatience = absl::Seconds(5);
constexpr char kOtherToken[] = "its token is another one; is WAYBILL_TOKEN the same on both hosts?";
constexpr const char* kFabrics[] = {"local", "verbs", "tcp"};

absl::StatusOr<std::unique_ptr<Fabric>> MakeForced(const std::string& name,
                                                   const MeasureOptions& options,
                                                   const std::string& own_address) {
  FabricOptions fabric;
  WAYBILL_ASSIGN_OR_RETURN(fabric.forced, ParseFabricKind(name));
  fabric.host = own_address;
  fabric.verbs.nics = options.nics;
  if (options.gid_index >= 0) fabric.verbs.gid_index = static_cast<uint32_t>(options.gid_index);
  return MakeFabric(fabric);
}

// One end of one lane.
class MeasuredLane {
 public:
  static absl::StatusOr<std::unique_ptr<MeasuredLane>> Open(std::unique_ptr<Fabric> fabric) {
    auto lane = std::make_unique<MeasuredLane>();
    lane->fabric_ = std::move(fabric);
    lane->events_.reserve(256);
    WAYBILL_ASSIGN_OR_RETURN(lane->id_, lane->fabric_->OpenLane("the peer", ""));
    WAYBILL_ASSIGN_OR_RETURN(lane->region_, lane->fabric_->Allocate(kRegionBytes, "doctor"));
    return lane;
  }

  absl::StatusOr<std::string> Address() { return fabric_->LaneAddress(id_); }
  std::string Path() { return fabric_->DescribeLane(id_); }

  absl::Status Connect(const std::string& address) {
    WAYBILL_RETURN_IF_ERROR(fabric_->ConnectLane(id_, address));
    const absl::Time deadline = SteadyNow() + kPatience;
    while (!connected_) {
      if (SteadyNow() > deadline) return absl::DeadlineExceededError("the lane does not connect");
      WAYBILL_RETURN_IF_ERROR(Step());
    }
    return fabric_->Grant(id_, region_.id);
  }

  absl::StatusOr<std::string> Describe() { return fabric_->Describe(region_.id); }

  absl::Status Import(const std::string& descriptor) {
    const absl::Time deadline = SteadyNow() + kPatience;
    while (true) {
      const auto remote = fabric_->Import(id_, descriptor);
      if (remote.ok()) remote_ = *remote;
      if (!absl::IsFailedPrecondition(remote.status()) || SteadyNow() > deadline) {
        return remote.status();
      }
      WAYBILL_RETURN_IF_ERROR(Step());
    }
  }

  absl::Status Step() {
    fabric_->Wait(SteadyNow() + absl::Milliseconds(5));
    events_.clear();
    fabric_->Poll(events_);
    for (const FabricEvent& event : events_) {
      connected_ = connected_ || event.kind == FabricEvent::Kind::kConnected;
      complete_ += event.kind == FabricEvent::Kind::kComplete ? 1 : 0;
      if (event.kind == FabricEvent::Kind::kFailed) return fabric_->LaneStatus(id_);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<SizePoint> Measure(uint64_t size, double seconds) {
    SizePoint point{.write_bytes = size};
    std::vector<double> latencies;
    const absl::Time begin = SteadyNow();
    do {
      const absl::Time posted = SteadyNow();
      WAYBILL_RETURN_IF_ERROR(Post(size));
      WAYBILL_RETURN_IF_ERROR(AwaitOutstanding(0));
      latencies.push_back(absl::ToDoubleSeconds(SteadyNow() - posted));
    } while (latencies.size() < 5 || SteadyNow() < begin + absl::Seconds(seconds / 2));
    std::nth_element(latencies.begin(),
                     latencies.begin() + static_cast<ptrdiff_t>(latencies.size() / 2),
                     latencies.end());
    point.latency_seconds = latencies[latencies.size() / 2];
    // As many on their way as the fabric takes, and no more than the region holds.
    const uint64_t window = std::clamp<uint64_t>(kRegionBytes / 2 / size, 1,
                                                 fabric_->capabilities().max_outstanding_posts);
    uint64_t posts = 0;
    const absl::Time start = SteadyNow();
    do {
      WAYBILL_RETURN_IF_ERROR(AwaitOutstanding(window - 1));
      WAYBILL_RETURN_IF_ERROR(Post(size));
      ++posts;
    } while (posts < 8 || SteadyNow() < start + absl::Seconds(seconds / 2));
    WAYBILL_RETURN_IF_ERROR(AwaitOutstanding(0));
    point.bytes_per_second =
        static_cast<double>(posts * size) / absl::ToDoubleSeconds(SteadyNow() - start);
    return point;
  }

 private:
  absl::Status Post(uint64_t size) {
    const uint64_t slots = kRegionBytes / 2 / size;
    const uint64_t at = posted_ % slots * size;
    // The source in the first half, the destination in the second: what comes in harms nothing.
    const Write write{region_.id, at, remote_, kRegionBytes / 2 + at, size};
    WAYBILL_RETURN_IF_ERROR(fabric_->Post(id_, {&write, 1}, std::nullopt, posted_));
    ++posted_;
    return absl::OkStatus();
  }

  absl::Status AwaitOutstanding(uint64_t most) {
    const absl::Time deadline = SteadyNow() + kPatience;
    while (posted_ - complete_ > most) {
      if (SteadyNow() > deadline) return absl::DeadlineExceededError("a write does not complete");
      WAYBILL_RETURN_IF_ERROR(Step());
    }
    return absl::OkStatus();
  }

  std::unique_ptr<Fabric> fabric_;
  LaneId id_ = LaneId::kNone;
  Region region_;
  RemoteRegionId remote_ = RemoteRegionId::kNone;
  bool connected_ = false;
  uint64_t posted_ = 0;
  uint64_t complete_ = 0;
  std::vector<FabricEvent> events_;
};

// On `local` the source has to be granted: to the peer, who has no use for it.
absl::StatusOr<FabricCurve> MeasureFabric(const std::string& name, LineChannel& channel,
                                          const MeasureOptions& options,
                                          const std::string& own_address,
                                          const Progress& progress) {
  FabricCurve curve{.fabric = name};
  WAYBILL_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric, MakeForced(name, options, own_address));
  WAYBILL_ASSIGN_OR_RETURN(const std::unique_ptr<MeasuredLane> lane,
                           MeasuredLane::Open(std::move(fabric)));
  WAYBILL_ASSIGN_OR_RETURN(const std::string address, lane->Address());
  WAYBILL_RETURN_IF_ERROR(
      channel.Say({{"fabric", name}, {"address", address}, {"from", own_address}}));
  WAYBILL_ASSIGN_OR_RETURN(const nlohmann::json answer, channel.Hear(SteadyNow() + kPatience));
  WAYBILL_RETURN_IF_ERROR(lane->Connect(TextOf(answer, "address")));
  WAYBILL_ASSIGN_OR_RETURN(const nlohmann::json granted, channel.Hear(SteadyNow() + kPatience));
  WAYBILL_RETURN_IF_ERROR(lane->Import(TextOf(granted, "descriptor")));
  curve.path = lane->Path();
  progress(absl::StrCat("measuring ", curve.path));
  for (uint64_t size = 64; size <= kLargestWrite; size *= 4) {
    WAYBILL_ASSIGN_OR_RETURN(const SizePoint point, lane->Measure(size, options.seconds_each));
    curve.points.push_back(point);
  }
  return curve;
}

// Whatever the other end still says of this fabric comes before its "ready".
absl::Status EndOne(LineChannel& channel) {
  WAYBILL_RETURN_IF_ERROR(channel.Say({{"done", true}}));
  const absl::Time deadline = SteadyNow() + kPatience;
  while (true) {
    const absl::StatusOr<nlohmann::json> message = channel.Hear(deadline);
    if (message.ok() && message->contains("ready")) return absl::OkStatus();
    if (!message.ok() && !absl::IsUnavailable(message.status())) return message.status();
  }
}

absl::Status ServeOne(LineChannel& channel, const nlohmann::json& request,
                      const MeasureOptions& options, const std::string& own_address) {
  WAYBILL_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric,
                           MakeForced(TextOf(request, "fabric"), options, own_address));
  WAYBILL_ASSIGN_OR_RETURN(const std::unique_ptr<MeasuredLane> lane,
                           MeasuredLane::Open(std::move(fabric)));
  WAYBILL_ASSIGN_OR_RETURN(const std::string address, lane->Address());
  WAYBILL_RETURN_IF_ERROR(channel.Say({{"address", address}}));
  WAYBILL_RETURN_IF_ERROR(lane->Connect(TextOf(request, "address")));
  WAYBILL_ASSIGN_OR_RETURN(const std::string descriptor, lane->Describe());
  WAYBILL_RETURN_IF_ERROR(channel.Say({{"descriptor", descriptor}}));
  while (true) {
    WAYBILL_ASSIGN_OR_RETURN(const std::optional<nlohmann::json> message, channel.HearNow());
    if (message) return channel.Say({{"ready", true}});
    // The lane goes with the measuring end's; its "done" follows.
    if (!lane->Step().ok()) return absl::OkStatus();
  }
}

// Serves one peer until it has measured everything, or goes.
void ServePeer(LineChannel& channel, const MeasureOptions& options, const Progress& progress) {
  while (true) {
    const absl::StatusOr<nlohmann::json> request = channel.Hear(SteadyNow() + kPatience);
    if (!request.ok()) return;
    if (!request->contains("fabric")) {
      if (!channel.Say({{"ready", true}}).ok()) return;
      continue;
    }
    std::string own = options.own_address;
    if (own.empty()) {
      const auto towards = net::OwnAddressTowards(TextOf(*request, "from"));
      own = towards.ok() ? *towards : "127.0.0.1";
    }
    const absl::Status status = ServeOne(channel, *request, options, own);
    progress(absl::StrCat(TextOf(*request, "fabric"), ": ",
                          status.ok() ? absl::string_view("measured") : status.message()));
    if (!status.ok() && !channel.Say({{"error", std::string(status.message())}}).ok()) return;
  }
}

// --- proofs ---
// Each end shows that it knows the token: by a code of both ends' nonces, which says whose it is,
// so that nobody can send it back.

std::string ProofOf(const std::string& token, absl::string_view end, const std::string& served,
                    const std::string& serving) {
  const std::string text = absl::StrCat("waybill doctor 1 ", end, " ", served, " ", serving);
  std::array<unsigned char, EVP_MAX_MD_SIZE> code;
  unsigned int size = 0;
  HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), code.data(), &size);
  return absl::BytesToHexString({reinterpret_cast<const char*>(code.data()), size});
}

bool IsProof(const nlohmann::json& message, const std::string& wanted) {
  const std::string proof = TextOf(message, "proof");
  return proof.size() == wanted.size() &&
         CRYPTO_memcmp(proof.data(), wanted.data(), wanted.size()) == 0;
}

// A connection that has proved nothing yet.
struct Stranger {
  LineChannel channel;
  std::string nonce;  // The serving end's.
  absl::Time deadline;
};

// Answers a proof, with the serving end's own if it is right.
bool Admit(Stranger& stranger, const nlohmann::json& said, const std::string& token) {
  const std::string nonce = TextOf(said, "nonce");
  if (!IsProof(said, ProofOf(token, "measuring", nonce, stranger.nonce))) {
    (void)stranger.channel.Say({{"error", kOtherToken}});
    return false;
  }
  return stranger.channel.Say({{"proof", ProofOf(token, "serving", nonce, stranger.nonce)}}).ok();
}

absl::Status ProveAsMeasuringEnd(LineChannel& channel, const std::string& token) {
  WAYBILL_ASSIGN_OR_RETURN(const std::string nonce, net::RandomSecret());
  WAYBILL_ASSIGN_OR_RETURN(const nlohmann::json hello, channel.Hear(SteadyNow() + kPatience));
  const std::string theirs = TextOf(hello, "nonce");
  WAYBILL_RETURN_IF_ERROR(
      channel.Say({{"nonce", nonce}, {"proof", ProofOf(token, "measuring", nonce, theirs)}}));
  WAYBILL_ASSIGN_OR_RETURN(const nlohmann::json answer, channel.Hear(SteadyNow() + kPatience));
  if (IsProof(answer, ProofOf(token, "serving", nonce, theirs))) return absl::OkStatus();
  return absl::UnauthenticatedError(kOtherToken);
}

}  // namespace

absl::Status ServeMeasurements(const std::string& listen, const std::string& given_token,
                               const MeasureOptions& options, const Progress& progress) {
  WAYBILL_ASSIGN_OR_RETURN(const std::string token, JobToken(given_token));
  WAYBILL_ASSIGN_OR_RETURN(const net::HostPort address, net::ParseHostPort(listen));
  WAYBILL_ASSIGN_OR_RETURN(const net::Listener listener, net::Listen(address));
  progress(
      absl::StrCat("serving on ", net::ToString(listener.address),
                   "; on the other host: waybill doctor --peer THIS_HOST:", listener.address.port));
  std::list<Stranger> strangers;
  while (true) {
    std::vector<pollfd> watched = {{.fd = listener.socket.get(), .events = POLLIN}};
    for (const Stranger& stranger : strangers) {
      watched.push_back({.fd = stranger.channel.fd(), .events = POLLIN});
    }
    poll(watched.data(), watched.size(), /*timeout=*/1000);
    if (UniqueFd socket = net::Accept(listener.socket.get()); socket.valid()) {
      if (strangers.size() == kMostStrangers) strangers.pop_front();
      WAYBILL_ASSIGN_OR_RETURN(const std::string nonce, net::RandomSecret());
      strangers.push_back({LineChannel(std::move(socket)), nonce, SteadyNow() + kStrangerPatience});
      (void)strangers.back().channel.Say({{"nonce", nonce}});
    }
    for (auto stranger = strangers.begin(); stranger != strangers.end();) {
      const absl::StatusOr<std::optional<nlohmann::json>> proof = stranger->channel.HearNow();
      if (proof.ok() && !*proof && SteadyNow() < stranger->deadline) {
        ++stranger;
        continue;
      }
      if (proof.ok() && *proof && Admit(*stranger, **proof, token)) {
        ServePeer(stranger->channel, options, progress);
      }
      stranger = strangers.erase(stranger);
    }
  }
}

absl::StatusOr<std::vector<FabricCurve>> MeasurePeer(const std::string& peer,
                                                     const std::string& given_token,
                                                     const MeasureOptions& options,
                                                     const Progress& progress) {
  WAYBILL_ASSIGN_OR_RETURN(const std::string token, JobToken(given_token));
  const std::string with_port = peer.find(':') == std::string::npos ? peer + ":7071" : peer;
  WAYBILL_ASSIGN_OR_RETURN(net::HostPort address, net::ParseHostPort(with_port));
  WAYBILL_ASSIGN_OR_RETURN(address.host, net::NumericAddress(address.host));
  std::string own = options.own_address;
  if (own.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(own, net::OwnAddressTowards(address.host));
  }
  WAYBILL_ASSIGN_OR_RETURN(UniqueFd socket, net::BeginConnect(address));
  pollfd ready{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  absl::Status status =
      absl::DeadlineExceededError("no answer within 5 s: a firewall, most likely");
  if (poll(&ready, 1, /*timeout=*/5000) == 1) status = net::FinishConnect(socket.get(), address);
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrCat("doctor at ", net::ToString(address), ": ",
                                               status.message(),
                                               "; start `waybill doctor --serve` there"));
  }
  LineChannel channel(std::move(socket));
  WAYBILL_RETURN_IF_ERROR(While(absl::StrCat("doctor at ", net::ToString(address)),
                                ProveAsMeasuringEnd(channel, token)));
  std::vector<FabricCurve> curves;
  for (const char* name : kFabrics) {
    absl::StatusOr<FabricCurve> curve = MeasureFabric(name, channel, options, own, progress);
    curves.push_back(curve.ok() ? *std::move(curve)
                                : FabricCurve{.fabric = name, .status = curve.status()});
    WAYBILL_RETURN_IF_ERROR(EndOne(channel));
  }
  return curves;
}

std::string FormatCurves(const std::vector<FabricCurve>& curves) {
  constexpr double kWidth = 40;
  double most = 0;
  for (const FabricCurve& curve : curves) {
    for (const SizePoint& point : curve.points) most = std::max(most, point.bytes_per_second);
  }
  std::string text;
  for (const FabricCurve& curve : curves) {
    if (!curve.status.ok()) {
      absl::StrAppend(&text, "\n", curve.fabric, ": not here: ", curve.status.message(), "\n");
      continue;
    }
    absl::StrAppend(&text, "\n", curve.path, "\n",
                    absl::StrFormat("%10s %14s %12s\n", "write", "latency us", "GB/s"));
    for (const SizePoint& point : curve.points) {
      const auto bar = static_cast<size_t>(std::lround(point.bytes_per_second / most * kWidth));
      const std::string size = point.write_bytes < 1024 ? absl::StrCat(point.write_bytes, " B")
                               : point.write_bytes < (1 << 20)
                                   ? absl::StrCat(point.write_bytes >> 10, " KiB")
                                   : absl::StrCat(point.write_bytes >> 20, " MiB");
      absl::StrAppend(&text,
                      absl::StrFormat("%10s %14.1f %12.3f  %s\n", size, point.latency_seconds * 1e6,
                                      point.bytes_per_second / 1e9, std::string(bar, '#')));
    }
  }
  return text;
}

nlohmann::json CurvesToJson(const std::vector<FabricCurve>& curves) {
  nlohmann::json json = nlohmann::json::array();
  for (const FabricCurve& curve : curves) {
    nlohmann::json points = nlohmann::json::array();
    for (const SizePoint& point : curve.points) {
      points.push_back({{"write_bytes", point.write_bytes},
                        {"latency_seconds", point.latency_seconds},
                        {"bytes_per_second", point.bytes_per_second}});
    }
    json.push_back({{"fabric", curve.fabric},
                    {"path", curve.path},
                    {"error", std::string(curve.status.message())},
                    {"points", points}});
  }
  return json;
}

}  // namespace waybill
