#include "capi/rank.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "capi/deadline.h"
#include "capi/manifest.h"
#include "core/net/tcp_socket.h"

namespace waybill::capi {
namespace {

constexpr absl::Duration kJoinDefault = absl::Seconds(120);

absl::StatusOr<RankConfig> ReadRankConfig(const waybill_rank_options_t* given,
                                          const std::shared_ptr<Context>& context) {
  WAYBILL_ASSIGN_OR_RETURN(const auto read, ReadStruct(given, "rank"));
  RankConfig config;
  const auto set = [](std::string& to, const char* from, absl::string_view name) -> absl::Status {
    WAYBILL_ASSIGN_OR_RETURN(std::string text, Text(from, absl::StrCat("rank.", name)));
    if (!text.empty()) to = std::move(text);
    return absl::OkStatus();
  };
  std::string fabric = "auto", host, nics;
  WAYBILL_RETURN_IF_ERROR(set(config.identity.controller, read.controller, "controller"));
  WAYBILL_RETURN_IF_ERROR(set(config.identity.job, read.job, "job"));
  WAYBILL_RETURN_IF_ERROR(set(config.identity.token, read.token, "token"));
  WAYBILL_RETURN_IF_ERROR(set(config.identity.group, read.group, "group"));
  WAYBILL_RETURN_IF_ERROR(set(fabric, read.fabric, "fabric"));
  WAYBILL_RETURN_IF_ERROR(set(host, read.host, "host"));
  WAYBILL_RETURN_IF_ERROR(set(nics, read.nics, "nics"));
  config.identity.rank = read.rank;
  config.identity.world = read.world == 0 ? 1 : read.world;
  if (read.rank >= config.identity.world) {
    return absl::InvalidArgumentError(absl::StrCat("rank.rank is ", read.rank, ", rank.world ",
                                                   config.identity.world, ": ranks begin at 0"));
  }
  WAYBILL_ASSIGN_OR_RETURN(config.fabric.forced, ParseFabricKind(fabric));
  config.fabric.host = host;
  if (!nics.empty()) config.fabric.verbs.nics = absl::StrSplit(nics, ',');
  if (read.gid_index != 0) config.fabric.verbs.gid_index = read.gid_index - 1;
  constexpr uint32_t kLargestTimeout = 31, kLargestClass = 255;
  if (read.ack_timeout > kLargestTimeout || read.traffic_class > kLargestClass) {
    return absl::InvalidArgumentError(absl::StrCat("rank.ack_timeout is ", read.ack_timeout,
                                                   ", traffic_class ", read.traffic_class,
                                                   "; at most 31 and 255 are allowed"));
  }
  config.fabric.verbs.ack_timeout = static_cast<uint8_t>(read.ack_timeout);
  config.fabric.verbs.traffic_class = static_cast<uint8_t>(read.traffic_class);
  config.log = [context](LogLevel level, absl::string_view line) { context->Log(level, line); };
  config.fabric.verbs.log = [context](absl::string_view line) {
    context->Log(LogLevel::kInformation, absl::StrCat("verbs: ", line));
  };
  config.user = read.user;
  return config;
}

const char* RoleOf(bool trainer) { return trainer ? "trainer" : "worker"; }

}  // namespace

absl::StatusOr<RankParts> ReadRankParts(const std::shared_ptr<Context>& context,
                                        const waybill_rank_options_t* rank,
                                        const waybill_queue_t* queue,
                                        const waybill_manifest_t* manifest, Holes holes) {
  RankParts parts;
  WAYBILL_ASSIGN_OR_RETURN(parts.config, ReadRankConfig(rank, context));
  WAYBILL_ASSIGN_OR_RETURN(parts.queue, Find<Queue>(queue, "queue"));
  WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<ManifestObject>(manifest, "manifest"));
  parts.manifest = found->Copy();
  WAYBILL_RETURN_IF_ERROR(CheckManifest(parts.manifest, holes));
  return parts;
}

Rank::Rank(uint32_t source, RankParts parts, Regions regions,
           std::shared_ptr<kernels::cuda::Device> device)
    : config_(std::move(parts.config)),
      manifest_(std::move(parts.manifest)),
      regions_(std::move(regions)),
      device_(std::move(device)),
      source_(source),
      queue_(std::move(parts.queue)) {}

void Rank::Log(LogLevel level, absl::string_view what) const {
  const RankIdentity& id = config_.identity;
  config_.log(level, absl::StrCat(RoleOf(source_ == WAYBILL_SOURCE_TRAINER), " ", id.rank, " of ",
                                  id.world, " of job \"", id.job, "\" ", what));
}

void Rank::LogJoined() const {
  std::string text = "has joined";
  const nlohmann::json description = nlohmann::json::parse(Describe());
  for (const nlohmann::json& lane : description["lanes"]) {
    const bool to_trainer = source_ == WAYBILL_SOURCE_WORKER || lane["co_owner"].get<bool>();
    absl::StrAppend(&text, "; ", RoleOf(to_trainer), " ", lane["peer"].get<uint32_t>(), ": ",
                    lane["path"].get<std::string>());
  }
  Log(LogLevel::kInformation, text);
}

void Rank::SetState(State state) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kLeft) state_ = state;
}

void Rank::Close() {
  const std::lock_guard closing(close_mutex_);
  SetState(State::kLeft);
  stop_.request_stop();
  CancelCalls();
  calls_.Close();
  LeaveNow();
}

absl::Status Rank::BeginJoin(int64_t deadline_ns, uint64_t token,
                             std::function<absl::Status(const RankIdentity&)> run) {
  WAYBILL_RETURN_IF_ERROR(TimeLeft(deadline_ns, kJoinDefault).status());
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kNew) {
      return absl::FailedPreconditionError(
          state_ == State::kJoining || state_ == State::kJoined
              ? "it has joined, or is joining"
              : "it has left: a rank that joins again is made anew");
    }
    state_ = State::kJoining;
  }
  Do(WAYBILL_EVENT_JOINED, token, 0, [this, deadline_ns, run = std::move(run)]() -> absl::Status {
    const auto join = [&]() -> absl::Status {
      RankIdentity identity = config_.identity;
      WAYBILL_ASSIGN_OR_RETURN(identity.join_timeout, TimeLeft(deadline_ns, kJoinDefault));
      identity.cancel = stop_.get_token();
      identity.on_end = [this](const absl::Status& why) {
        Log(LogLevel::kWarning, absl::StrCat("has lost the job: ", why.message()));
        QueuedEvent event = NewEvent(WAYBILL_EVENT_ENDED);
        event.status = why;
        Push(std::move(event));
      };
      return run(identity);
    };
    absl::Status status = join();
    SetState(status.ok() ? State::kJoined : State::kNew);
    if (status.ok()) LogJoined();
    return status;
  });
  return absl::OkStatus();
}

absl::Status Rank::CheckJoined() const {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kJoined) return absl::OkStatus();
  return absl::FailedPreconditionError(state_ == State::kNew ? "it has not joined"
                                       : state_ == State::kJoining
                                           ? "it is joining: wait for JOINED"
                                           : "it has left");
}

absl::Status Rank::Leave(uint64_t token) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kLeaving || state_ == State::kLeft) {
      return absl::FailedPreconditionError("it has left");
    }
    state_ = State::kLeaving;
  }
  Do(WAYBILL_EVENT_LEFT, token, 0, [this] {
    LeaveNow();
    SetState(State::kLeft);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

void Rank::Do(uint32_t kind, uint64_t token, uint64_t version, std::function<absl::Status()> run) {
  calls_.Do([this, kind, token, version, run = std::move(run)](CallThread::How how) {
    QueuedEvent event = NewEvent(kind);
    event.token = token;
    event.version = version;
    event.status =
        how == CallThread::How::kRun ? run() : absl::CancelledError("it was destroyed before");
    Push(std::move(event));
  });
}

QueuedEvent Rank::NewEvent(uint32_t kind) const {
  return {.kind = kind, .source = source_, .user = config_.user};
}

absl::StatusOr<std::unique_ptr<Fabric>> Rank::MakeOwnFabric() const {
  FabricOptions options = config_.fabric;
  if (options.host.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(const net::HostPort address,
                             net::ParseHostPort(config_.identity.controller));
    WAYBILL_ASSIGN_OR_RETURN(options.host, net::OwnAddressTowards(address.host));
  }
  return MakeFabric(options);
}

nlohmann::json Rank::DescribeIdentity(absl::string_view role) const {
  nlohmann::json json = {
      {"role", std::string(role)},       {"rank", config_.identity.rank},
      {"world", config_.identity.world}, {"job", config_.identity.job},
      {"group", config_.identity.group}, {"controller", config_.identity.controller},
      {"bytes", manifest_.total_bytes()}};
  if (device_ != nullptr) {
    json["device"] = {{"ordinal", device_->ordinal()}, {"name", device_->name()}};
  }
  return json;
}

nlohmann::json LanesToJson(const std::vector<LaneReport>& lanes) {
  nlohmann::json json = nlohmann::json::array();
  for (const LaneReport& lane : lanes) {
    json.push_back({{"peer", lane.peer}, {"co_owner", lane.co_owner}, {"path", lane.path}});
  }
  return json;
}

void CopySpans(const StageSpans& spans, waybill_progress_t& progress) {
  static_assert(kStageCount == WAYBILL_STAGE_COUNT);
  for (size_t i = 0; i < spans.size(); ++i) {
    progress.begin_ns[i] = spans[i].begin_ns;
    progress.end_ns[i] = spans[i].end_ns;
  }
}

}  // namespace waybill::capi
