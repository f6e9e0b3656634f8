// SPDX-License-Identifier: Apache-2.0

#include "capi/rank.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "capi/deadline.h"
#include "capi/manifest.h"
#include "core/base/steady_now.h"
#include "core/control/controller_addresses.h"
#include "core/device/gpu_survey.h"
#include "core/host/nearest_nics.h"
#include "core/protocol/timeouts.h"

namespace waybill::capi {
namespace {

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
  WAYBILL_RETURN_IF_ERROR(set(config.rack, read.rack, "rack"));
  config.identity.rank = read.rank;
  config.identity.world = read.world == 0 ? 1 : read.world;
  static_assert(WAYBILL_ANY_RANK == kAnyRank);
  if (read.rank >= config.identity.world && read.rank != WAYBILL_ANY_RANK) {
    return absl::InvalidArgumentError(absl::StrCat("rank.rank is ", read.rank, ", rank.world ",
                                                   config.identity.world, ": ranks begin at 0"));
  }
  WAYBILL_ASSIGN_OR_RETURN(config.fabric.forced, ParseFabricKind(fabric));
  config.fabric.host = host;
  config.fabric.rate_limit = read.rate_limit;
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
  parts.manifest.set_rack(parts.config.rack);
  WAYBILL_RETURN_IF_ERROR(CheckManifest(parts.manifest, holes));
  return parts;
}

Rank::Rank(uint32_t source, RankParts parts, Regions regions, std::shared_ptr<Device> device)
    : config_([&] {
        parts.config.identity.warn = [this](absl::string_view line) {
          Log(LogLevel::kWarning, line);
        };
        return std::move(parts.config);
      }()),
      rank_(config_.identity.rank),
      manifest_(std::move(parts.manifest)),
      regions_(std::move(regions)),
      device_(std::move(device)),
      source_(source),
      queue_(std::move(parts.queue)) {}

void Rank::Log(LogLevel level, absl::string_view what) const {
  const RankIdentity& id = config_.identity;
  const std::string rank = rank_ == kAnyRank ? "of any rank" : absl::StrCat(rank_.load());
  config_.log(level, absl::StrCat(RoleOf(source_ == WAYBILL_SOURCE_TRAINER), " ", rank, " of ",
                                  id.world, " of job \"", id.job, "\" ", what));
}

void Rank::LogJoined() const {
  std::string text = "has joined";
  const nlohmann::json description = Describe();
  for (const nlohmann::json& lane : description["lanes"]) {
    const bool to_trainer = source_ == WAYBILL_SOURCE_WORKER ? !lane["relay"].get<bool>()
                                                             : lane["co_owner"].get<bool>();
    absl::StrAppend(&text, "; ", RoleOf(to_trainer), " ", lane["peer"].get<uint32_t>(), ": ",
                    lane["path"].get<std::string>());
  }
  Log(LogLevel::kInformation, text);
}

Rank::~Rank() {
  if (opener_.joinable()) opener_.join();
}

uint64_t Rank::NewToken(uint64_t user_token) {
  const std::lock_guard lock(mutex_);
  user_tokens_[++last_token_] = user_token;
  return last_token_;
}

// --- joining and leaving ---

absl::Status Rank::Join(int64_t deadline_ns, uint64_t user_token) {
  return BeginJoin(deadline_ns, user_token, std::nullopt);
}

absl::Status Rank::JoinAndWait(int64_t deadline_ns) {
  std::promise<absl::Status> ended;
  std::future<absl::Status> end = ended.get_future();
  WAYBILL_RETURN_IF_ERROR(BeginJoin(deadline_ns, 0, std::move(ended)));
  return end.get();
}

absl::Status Rank::BeginJoin(int64_t deadline_ns, uint64_t user_token,
                             std::optional<std::promise<absl::Status>> ended) {
  WAYBILL_ASSIGN_OR_RETURN(const absl::Duration left, TimeLeft(deadline_ns, kJoinTimeout));
  const absl::Time deadline = SteadyNow() + left;
  std::thread before;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kNew) {
      return absl::FailedPreconditionError(
          state_ == State::kJoining || state_ == State::kJoined
              ? "it has joined, or is joining"
              : "it has left: a rank that joins again is made anew");
    }
    state_ = State::kJoining;
    join_ended_ = std::move(ended);
    user_tokens_[++last_token_] = user_token;
    before = std::move(opener_);
    opener_ = std::thread([this, token = last_token_, deadline] { OpenAndJoin(token, deadline); });
  }
  if (before.joinable()) before.join();  // It has ended with the last attempt.
  return absl::OkStatus();
}

// On a thread of its own.
void Rank::OpenAndJoin(uint64_t token, absl::Time deadline) {
  const absl::Status made = MakeClient();
  std::unique_lock lock(mutex_);
  if (made.ok() && state_ == State::kJoining) {
    has_client_ = true;
    return JoinClient(token, deadline);
  }
  const bool left = state_ != State::kJoining;
  lock.unlock();
  OnNotice({.kind = Notice::Kind::kJoined,
            .token = token,
            .status = left ? absl::CancelledError("it left before it had joined") : made});
  if (left) OnNotice({.kind = Notice::Kind::kLeft});
}

absl::Status NotJoined() {
  return absl::FailedPreconditionError("it has not joined: join it first, and wait for JOINED");
}

absl::Status Rank::CheckJoined() const {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kJoined) return absl::OkStatus();
  if (state_ == State::kNew) return NotJoined();
  return absl::FailedPreconditionError(state_ == State::kJoining ? "it is joining: wait for JOINED"
                                                                 : "it has left");
}

absl::Status Rank::Leave(uint64_t user_token) {
  std::unique_lock lock(mutex_);
  if (state_ == State::kLeaving || state_ == State::kLeft) {
    return absl::FailedPreconditionError("it has left");
  }
  const State before = std::exchange(state_, State::kLeaving);
  user_tokens_[++last_token_] = user_token;
  leave_token_ = last_token_;
  if (has_client_) {
    LeaveClient(leave_token_);
  } else if (before != State::kJoining) {
    lock.unlock();
    OnNotice({.kind = Notice::Kind::kLeft});
  }  // Else the thread that joins ends it.
  return absl::OkStatus();
}

void Rank::Close() {
  const std::lock_guard closing(close_mutex_);
  {
    const std::lock_guard lock(mutex_);
    silent_leave_ = state_ != State::kLeaving;
  }
  (void)Leave(0);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return state_ == State::kLeft; });
  std::thread opener = std::move(opener_);
  lock.unlock();
  if (opener.joinable()) opener.join();
}

void Rank::ForgetToken(uint64_t token) {
  const std::lock_guard lock(mutex_);
  user_tokens_.erase(token);
}

// --- notices ---

void Rank::OnNotice(const Notice& notice) {
  switch (notice.kind) {
    case Notice::Kind::kJoined:
      return OnJoined(notice);
    case Notice::Kind::kPublished:
      return PushEnd(WAYBILL_EVENT_PUBLISHED, notice);
    case Notice::Kind::kReleased:
      return PushEnd(WAYBILL_EVENT_RELEASED, notice);
    case Notice::Kind::kFetched:
      return PushEnd(WAYBILL_EVENT_FETCHED, notice);
    case Notice::Kind::kLeft: {
      bool silent;
      uint64_t token;
      {
        const std::lock_guard lock(mutex_);
        silent = silent_leave_;
        token = leave_token_;
      }
      if (!silent) {
        Notice left = notice;
        left.token = token;
        PushEnd(WAYBILL_EVENT_LEFT, left);
      }
      const std::lock_guard lock(mutex_);
      state_ = State::kLeft;
      changed_.notify_all();
      return;
    }
    case Notice::Kind::kDisconnected: {
      Log(LogLevel::kWarning, absl::StrCat("has lost the controller, and tries to come back: ",
                                           notice.status.message()));
      QueuedEvent event = NewEvent(WAYBILL_EVENT_DISCONNECTED);
      event.status = notice.status;
      return Push(std::move(event));
    }
    case Notice::Kind::kReconnected:
      LogJoined();
      return Push(NewEvent(WAYBILL_EVENT_RECONNECTED));
    case Notice::Kind::kGroupJoined:
    case Notice::Kind::kGroupLeft:
    case Notice::Kind::kWorkerLost: {
      QueuedEvent event =
          NewEvent(notice.kind == Notice::Kind::kGroupJoined  ? WAYBILL_EVENT_GROUP_JOINED
                   : notice.kind == Notice::Kind::kWorkerLost ? WAYBILL_EVENT_WORKER_LOST
                                                              : WAYBILL_EVENT_GROUP_LEFT);
      event.group = notice.group;
      event.status = notice.status;
      return Push(std::move(event));
    }
    case Notice::Kind::kCaughtUp: {
      QueuedEvent event = NewEvent(WAYBILL_EVENT_CAUGHT_UP);
      event.version = notice.version;
      return Push(std::move(event));
    }
    case Notice::Kind::kEnded: {
      Log(LogLevel::kWarning, absl::StrCat("was dismissed: ", notice.status.message()));
      QueuedEvent event = NewEvent(WAYBILL_EVENT_ENDED);
      event.status = notice.status;
      return Push(std::move(event));
    }
    default:
      return OnUpdateNotice(notice);
  }
}

void Rank::OnJoined(const Notice& notice) {
  std::optional<std::promise<absl::Status>> ended;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kJoining) state_ = notice.status.ok() ? State::kJoined : State::kNew;
    if (!notice.status.ok() && state_ == State::kNew) has_client_ = false;
    if (notice.status.ok()) rank_ = notice.rank;
    ended = std::exchange(join_ended_, std::nullopt);
  }
  if (notice.status.ok()) LogJoined();
  if (ended) {
    ForgetToken(notice.token);
    return ended->set_value(notice.status);
  }
  PushEnd(WAYBILL_EVENT_JOINED, notice);
}

void Rank::PushEnd(uint32_t kind, const Notice& notice) {
  QueuedEvent event = NewEvent(kind);
  event.version = notice.version;
  event.status = notice.status;
  {
    const std::lock_guard lock(mutex_);
    const auto token = user_tokens_.find(notice.token);
    if (token != user_tokens_.end()) {
      event.token = token->second;
      user_tokens_.erase(token);
    }
  }
  Push(std::move(event));
}

QueuedEvent Rank::NewEvent(uint32_t kind) const {
  return {.kind = kind, .source = source_, .user = config_.user};
}

absl::StatusOr<std::unique_ptr<Fabric>> Rank::MakeOwnFabric() const {
  FabricOptions options = config_.fabric;
  if (options.host.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(options.host,
                             OwnAddressTowardsControllers(config_.identity.controller));
  }
  if (device_ != nullptr) {
    options.verbs.choose = [this](const std::vector<std::string>& active) {
      const NearestNics nearest = FindNearestNics(device_->PciAddress(), active);
      return ChosenNics{nearest.names, nearest.why};
    };
  }
  return MakeFabric(options);
}

nlohmann::json Rank::DescribeIdentity(absl::string_view role) const {
  nlohmann::json json = {
      {"role", std::string(role)},       {"rank", rank_.load()},
      {"world", config_.identity.world}, {"job", config_.identity.job},
      {"group", config_.identity.group}, {"controller", config_.identity.controller},
      {"bytes", manifest_.total_bytes()}};
  if (!manifest_.rack().empty()) json["rack"] = manifest_.rack();
  if (device_ != nullptr) {
    json["device"] = {{"ordinal", device_->ordinal()},
                      {"name", device_->name()},
                      {"uuid", UuidOfGpu(device_->ordinal())}};
  }
  return json;
}

nlohmann::json LanesToJson(const std::vector<LaneReport>& lanes) {
  nlohmann::json json = nlohmann::json::array();
  for (const LaneReport& lane : lanes) {
    json.push_back({{"peer", lane.peer},
                    {"co_owner", lane.co_owner},
                    {"relay", lane.relay},
                    {"path", lane.path}});
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
