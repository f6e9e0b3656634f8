// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/rank_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/deflate.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/protocol/message_codec.h"

namespace waybill {
namespace {

// An upper bound of the size of a rank's plan.
constexpr size_t kMostTableBytes = size_t{4} << 30;

// Routes name no tensors, so a plan that was made for another manifest could fit this one.
absl::StatusOr<RankPlan> DecodeRoutes(const proto::Plan& plan, const std::string& head) {
  if (plan.manifest_hash() != Sha256(head)) {
    return absl::InvalidArgumentError(
        "the plan was made for another manifest than the one that this rank has declared");
  }
  WAYBILL_ASSIGN_OR_RETURN(const std::string routes, Inflate(plan.routes(), kMostTableBytes));
  return DecodeRankPlan(routes);
}

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLongestBackoff = absl::Seconds(2);
// Used if there are standbys, one of which takes over within two seconds.
constexpr absl::Duration kLongestBackoffOfSeveral = absl::Milliseconds(400);

}  // namespace

RankSession::RankSession(SessionOptions options, SessionHost* host)
    : options_(std::move(options)), host_(*host), id_(options_.id), any_rank_(options_.any_rank) {}

void RankSession::Send(proto::RankMessage message) {
  if (stream_ == Stream::kOpen && life_ != Life::kLeft) host_.Send(std::move(message));
}

// --- joining and leaving ---

void RankSession::Join(uint64_t token, absl::Time deadline, absl::Time now) {
  if (life_ != Life::kNew) {
    return Tell({.kind = Notice::Kind::kJoined,
                 .token = token,
                 .status = absl::FailedPreconditionError("join: it has joined, or left")});
  }
  life_ = Life::kJoining;
  join_token_ = token;
  join_deadline_ = deadline;
  lost_status_ = absl::UnavailableError("nobody answered; is the controller running?");
  Open();
  OnTime(now);
}

void RankSession::FinishJoining(const absl::Status& status) {
  life_ = status.ok() ? Life::kMember : Life::kEnded;
  join_deadline_ = absl::InfiniteFuture();
  Tell({.kind = Notice::Kind::kJoined,
        .token = join_token_,
        .status =
            While(absl::StrCat("join job \"", options_.job, "\" as ",
                               any_rank_ ? absl::StrCat("any ", Name(id_.role)) : ToString(id_)),
                  status),
        .rank = id_.rank});
}

void RankSession::Leave(uint64_t token, absl::Time now) {
  if (leaving_ || life_ == Life::kLeft) {
    return Tell({.kind = Notice::Kind::kLeft,
                 .token = token,
                 .status = absl::FailedPreconditionError("leave: it has left")});
  }
  leaving_ = true;
  leave_token_ = token;
  if (life_ == Life::kJoining) FinishJoining(absl::CancelledError("it leaves the job"));
  if (PrepareToLeave(now)) FinishLeaving(now);
}

absl::Status RankSession::CheckMember() const {
  if (leaving_) return absl::CancelledError("it has left the job");
  if (is_member()) return absl::OkStatus();
  return ended() && !lost_status_.ok() ? lost_status_
                                       : absl::FailedPreconditionError("it has not joined");
}

void RankSession::FinishLeaving(absl::Time now) {
  if (life_ == Life::kLeft) return;
  proto::RankMessage message;
  message.mutable_leave();
  Send(std::move(message));
  life_ = Life::kLeft;
  reopen_at_ = absl::InfiniteFuture();
  if (stream_ != Stream::kOpen) return TellLeft();
  // The controller answers by ending the stream. If the process ends after that, no message is
  // lost.
  left_deadline_ = now + kAnswerMargin;
}

void RankSession::TellLeft() {
  left_deadline_ = absl::InfiniteFuture();
  if (stream_ != Stream::kClosed) host_.CloseStream();
  stream_ = Stream::kClosed;
  Tell({.kind = Notice::Kind::kLeft, .token = leave_token_});
}

// --- the stream ---

void RankSession::Open() {
  stream_ = Stream::kOpening;
  reopen_at_ = absl::InfiniteFuture();
  host_.OpenStream();
}

void RankSession::OnStreamOpen(absl::Time now) {
  if (stream_ != Stream::kOpening) return;
  stream_ = Stream::kOpen;
  heard_ = false;
  nics_ = options_.nics.SerializeAsString();
  report_.clear();
  proto::RankMessage message;
  proto::Join* join = message.mutable_join();
  join->set_protocol_version(kProtocolVersion);
  join->set_job(options_.job);
  join->set_role(static_cast<uint32_t>(options_.id.role));
  join->set_rank(id_.rank);
  join->set_any_rank(any_rank_);
  join->set_world(options_.world);
  join->set_incarnation(options_.incarnation);
  join->set_returning(was_established_);
  if (join_deadline_ != absl::InfiniteFuture()) {
    join->set_deadline_ms(std::max<int64_t>(1, absl::ToInt64Milliseconds(join_deadline_ - now)));
  }
  FillJoin(*join);
  host_.Send(std::move(message));
  proto::RankMessage manifest;
  manifest.mutable_manifest()->set_head(options_.manifest.head);
  host_.Send(std::move(manifest));
}

void RankSession::OnStreamEnd(const absl::Status& status, absl::Time now) {
  if (stream_ == Stream::kClosed) return;
  stream_ = Stream::kClosed;
  if (life_ == Life::kLeft) return TellLeft();
  lost_status_ = status;
  // A member tries again: another program may listen at the address while the controller is away.
  if (life_ == Life::kJoining && absl::IsUnauthenticated(status)) return FinishJoining(status);
  EndTerms(status, now);
  if (life_ == Life::kMember && !leaving_ && !std::exchange(told_disconnected_, true)) {
    Tell({.kind = Notice::Kind::kDisconnected, .status = status});
  }
  if (leaving_ || ended()) return;
  if (++addresses_tried_ < options_.controllers) {
    reopen_at_ = now;
    return;
  }
  addresses_tried_ = 0;
  backoff_ = std::clamp(backoff_ * 2, kFirstBackoff,
                        options_.controllers > 1 ? kLongestBackoffOfSeveral : kLongestBackoff);
  // Randomised, so that ranks that lost one controller do not all reconnect at once.
  reopen_at_ = now + backoff_ / 2 + backoff_ * static_cast<double>(options_.incarnation % 64) / 128;
}

void RankSession::OnDismissal(const absl::Status& status, absl::Time now) {
  host_.CloseStream();
  stream_ = Stream::kClosed;
  reopen_at_ = absl::InfiniteFuture();
  lost_status_ = status;
  if (life_ == Life::kJoining) {
    FinishJoining(status);
  } else if (life_ == Life::kMember) {
    life_ = Life::kEnded;
    EndTerms(status, now);
    if (!leaving_) Tell({.kind = Notice::Kind::kEnded, .status = status});
  }
}

void RankSession::OnMessage(const proto::ControllerMessage& message, absl::Time now) {
  if (stream_ != Stream::kOpen || life_ == Life::kLeft) return;
  heard_ = true;
  switch (message.kind_case()) {
    case proto::ControllerMessage::kPlan:
      return OnPlan(message.plan());
    case proto::ControllerMessage::kPartWanted:
      return SendPart(message.part_wanted().name());
    case proto::ControllerMessage::kConnect: {
      const proto::Connect& connect = message.connect();
      const Term* term = FindTerm(connect.epoch());
      if (term == nullptr) return;
      if (absl::Status status = host_.Connect(term->group, connect); !status.ok()) {
        SendConnectFailed(connect.epoch(), status);
      }
      return;
    }
    case proto::ControllerMessage::kEstablished: {
      const Term* term = FindTerm(message.established().epoch());
      if (term == nullptr) return;
      terms_.at(term->group).established = was_established_ = admitted_ = true;
      backoff_ = absl::ZeroDuration();
      addresses_tried_ = 0;
      lost_status_ = absl::OkStatus();
      if (life_ == Life::kJoining) FinishJoining(absl::OkStatus());
      if (std::exchange(told_disconnected_, false)) Tell({.kind = Notice::Kind::kReconnected});
      return OnEstablished(message.established(), now);
    }
    case proto::ControllerMessage::kGroupChange:
      if (message.group_change().has_lost()) {
        return Tell({.kind = Notice::Kind::kWorkerLost,
                     .status = DecodeError(message.group_change().lost()),
                     .group = message.group_change().group()});
      }
      return Tell({.kind = message.group_change().here() ? Notice::Kind::kGroupJoined
                                                         : Notice::Kind::kGroupLeft,
                   .group = message.group_change().group()});
    case proto::ControllerMessage::kAssigned:
      id_.rank = message.assigned().rank();
      any_rank_ = false;
      return;
    case proto::ControllerMessage::kChallenge: {
      proto::RankMessage alive;
      alive.mutable_alive();
      return Send(std::move(alive));
    }
    case proto::ControllerMessage::kDismissal:
      return OnDismissal(DecodeError(message.dismissal().error()), now);
    default:
      return OnRoleMessage(message, now);
  }
}

// --- terms ---

const RankSession::Term* RankSession::FindTerm(uint64_t epoch) const {
  for (const auto& [group, term] : terms_) {
    if (term.epoch == epoch) return &term;
  }
  return nullptr;
}

bool RankSession::established() const {
  return std::any_of(terms_.begin(), terms_.end(),
                     [](const auto& t) { return t.second.established; });
}

std::vector<std::string> RankSession::groups() const {
  std::vector<std::string> groups;
  for (const auto& [group, term] : terms_) {
    if (term.established) groups.push_back(group);
  }
  return groups;
}

void RankSession::EndTerms(const absl::Status& status, absl::Time now) {
  admitted_ = false;
  for (auto& [group, term] : terms_) term.established = false;
  OnLost(status, now);
  terms_.clear();
}

void RankSession::SendPart(const proto::PartName& name) {
  const bool tensors = static_cast<PartKind>(name.kind()) == PartKind::kTensors;
  proto::RankMessage message;
  *message.mutable_part()->mutable_name() = name;
  message.mutable_part()->set_deflated(
      Deflate(tensors ? options_.manifest.tensors : options_.manifest.holdings));
  Send(std::move(message));
}

void RankSession::OnPlan(const proto::Plan& plan) {
  if (!plan.relay()) {
    terms_[plan.group()] = {.group = plan.group(),
                            .epoch = plan.epoch(),
                            .plan_hash = plan.plan_hash(),
                            .lent = !plan.lender().empty()};
  } else if (const Term* term = FindTerm(plan.epoch());
             term == nullptr || term->group != plan.group() || plan.group() != options_.id.group) {
    return;  // The plan for receiving was refused.
  }
  absl::StatusOr<RankPlan> routes = DecodeRoutes(plan, options_.manifest.head);
  absl::StatusOr<proto::Offers> offers =
      routes.ok()
          ? host_.SetPlan({.group = plan.group(),
                           .lender = plan.lender(),
                           .lent_version = plan.lent_version(),
                           .relay = plan.relay(),
                           .routes = *std::move(routes),
                           .hash = plan.plan_hash(),
                           .lanes = {.tag = static_cast<uint32_t>(plan.epoch()) & kSequenceMask,
                                     .peers = DecodeLanes(plan)}})
          : routes.status();
  if (!offers.ok()) {
    terms_.erase(plan.group());
    return SendConnectFailed(plan.epoch(), offers.status());
  }
  offers->set_epoch(plan.epoch());
  offers->set_relay(plan.relay());
  proto::RankMessage message;
  *message.mutable_offers() = *std::move(offers);
  Send(std::move(message));
}

void RankSession::SendConnectFailed(uint64_t epoch, const absl::Status& status) {
  proto::RankMessage message;
  message.mutable_connect_failed()->set_epoch(epoch);
  *message.mutable_connect_failed()->mutable_error() =
      EncodeError(While("connect the lanes", status));
  Send(std::move(message));
}

void RankSession::OnConnected(const std::string& group, const std::vector<LaneReport>& lanes,
                              bool relay) {
  const auto term = terms_.find(group);
  if (term == terms_.end()) return;
  proto::RankMessage message;
  message.mutable_connected()->set_epoch(term->second.epoch);
  message.mutable_connected()->set_relay(relay);
  for (const LaneReport& lane : lanes) {
    proto::LaneReport* report = message.mutable_connected()->add_lanes();
    report->set_peer(lane.peer);
    report->set_path(lane.path);
    report->set_co_owner(lane.co_owner);
    report->set_relay(lane.relay);
  }
  *message.mutable_connected()->mutable_report() = TakeReport();
  Send(std::move(message));
}

void RankSession::OnLaneFailed(const std::string& group, const RankId& peer,
                               const absl::Status& status) {
  const auto term = terms_.find(group);
  if (term == terms_.end()) return;
  proto::RankMessage message;
  message.mutable_lane_failed()->set_epoch(term->second.epoch);
  message.mutable_lane_failed()->set_peer(peer.rank);
  message.mutable_lane_failed()->set_co_owner(options_.id.role == Role::kTrainer &&
                                              peer.role == Role::kTrainer);
  message.mutable_lane_failed()->set_relay(group == options_.id.group &&
                                           peer.role == Role::kWorker);
  *message.mutable_lane_failed()->mutable_error() = EncodeError(status);
  Send(std::move(message));
}

void RankSession::OnNics(proto::Nics nics) {
  if (stream_ != Stream::kOpen) return;
  std::string serialized = nics.SerializeAsString();
  if (serialized == nics_) return;
  nics_ = std::move(serialized);
  proto::RankMessage message;
  *message.mutable_nics() = std::move(nics);
  Send(std::move(message));
}

proto::RankReport RankSession::TakeReport() {
  proto::RankReport report = host_.MakeReport();
  report_ = report.SerializeAsString();
  return report;
}

void RankSession::Report() {
  if (stream_ != Stream::kOpen || terms_.empty()) return;
  const std::string before = report_;
  proto::RankMessage message;
  *message.mutable_report() = TakeReport();
  if (report_ != before) Send(std::move(message));
}

// --- time ---

void RankSession::OnTime(absl::Time now) {
  if (now >= reopen_at_) Open();
  if (now >= left_deadline_) TellLeft();
  if (life_ == Life::kJoining && now >= join_deadline_ + kAnswerMargin) {
    if (stream_ != Stream::kClosed) host_.CloseStream();
    stream_ = Stream::kClosed;
    reopen_at_ = absl::InfiniteFuture();
    FinishJoining(heard_ ? absl::DeadlineExceededError("the controller does not answer")
                         : lost_status_);
  }
  OnRoleTime(now);
}

absl::Time RankSession::next_deadline() const {
  absl::Time next = std::min({reopen_at_, left_deadline_, role_deadline()});
  if (life_ == Life::kJoining) next = std::min(next, join_deadline_ + kAnswerMargin);
  return next;
}

}  // namespace waybill
