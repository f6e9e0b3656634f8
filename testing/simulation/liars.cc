// SPDX-License-Identifier: Apache-2.0

#include "testing/simulation/liars.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/deflate.h"
#include "core/protocol/message_codec.h"
#include "core/tensor/manifest_codec.h"
#include "testing/simulation/job.h"

namespace waybill::simulation {
namespace {

// Of a worker that wants all of the job's tensor, or one that nobody has.
const EncodedManifest& ManifestOf(bool stranger) {
  static const EncodedManifest& whole =
      *new EncodedManifest(EncodeInParts(OneShard(Box({0, 0}, {8, 12}))));
  static const EncodedManifest& other = *new EncodedManifest([] {
    Manifest m;
    m.AddRegion("v", 16);
    m.AddShard(m.AddTensor("v", {8}, Dtype::kBf16), {Dtype::kBf16}, Box({0}, {8}), {0, 0, {1}});
    return EncodeInParts(m);
  }());
  return stranger ? other : whole;
}

}  // namespace

uint32_t Liars::AnyNumber() {
  constexpr uint32_t kNumbers[] = {0, 1, 2, 3, 4, 7, 65535, 65536, 1u << 31, ~0u};
  return kNumbers[run_.Below(std::size(kNumbers))];
}

uint64_t Liars::AnyVersion() {
  constexpr uint64_t kVersions[] = {0, 1, 3, 1000, uint64_t{1} << 63, ~uint64_t{0}};
  return kVersions[run_.Below(std::size(kVersions))];
}

proto::Round Liars::AnyRound(const Liar& liar) {
  if (run_.Below(4) != 0) return liar.round;
  proto::Round round;
  round.set_epoch(run_.Below(2) == 0 ? liar.epoch : AnyVersion());
  round.set_sequence(AnyNumber());
  return round;
}

void Liars::End(Coordinator* coordinator) {
  until_ = absl::InfinitePast();
  for (const auto& [connection, liar] : std::exchange(liars_, {})) {
    if (coordinator != nullptr) coordinator->OnGone(connection, run_.now());
  }
}

bool Liars::Hear(ConnectionId connection, const proto::ControllerMessage& message) {
  const auto found = liars_.find(connection);
  if (found == liars_.end()) return false;
  Liar& liar = found->second;
  if (message.has_plan()) liar.epoch = message.plan().epoch();
  if (message.has_prepare()) liar.round = message.prepare().round();
  if (message.has_part_wanted()) {
    const proto::PartName& name = message.part_wanted().name();
    const bool tensors = static_cast<PartKind>(name.kind()) == PartKind::kTensors;
    proto::RankMessage& answer = liar.answers.emplace_back();
    *answer.mutable_part()->mutable_name() = name;
    const uint64_t lie = run_.Below(8);
    const EncodedManifest& manifest = ManifestOf(liar.stranger != (lie == 1));
    answer.mutable_part()->set_deflated(Deflate(lie == 0  ? "garbage"
                                                : tensors ? manifest.tensors
                                                          : manifest.holdings));
  }
  if (message.has_challenge()) liar.answers.emplace_back().mutable_alive();
  return true;
}

void Liars::Step(Coordinator* coordinator) {
  if (coordinator == nullptr) return;
  if (run_.now() >= until_) return End(coordinator);
  run_.SetActive();
  if (liars_.size() < kMost && run_.Below(20) == 0) Join(coordinator);
  if (liars_.empty() || run_.Below(4) != 0) return;
  const auto picked =
      std::next(liars_.begin(), static_cast<std::ptrdiff_t>(run_.Below(liars_.size())));
  const ConnectionId connection = picked->first;
  if (run_.Below(100) == 0) {
    liars_.erase(picked);
    return coordinator->OnGone(connection, run_.now());
  }
  proto::RankMessage message;
  if (!picked->second.answers.empty()) {
    message = std::move(picked->second.answers.front());
    picked->second.answers.pop_front();
  } else {
    message = Lie(picked->second);
  }
  coordinator->OnMessage(connection, message, run_.now());
}

void Liars::Join(Coordinator* coordinator) {
  const ConnectionId connection = run_.NextNumber();
  Liar& liar = liars_[connection];
  const uint32_t group = static_cast<uint32_t>(run_.Below(3));
  constexpr uint32_t kWorlds[] = {1, 2, 65536};
  liar.world = kWorlds[group];
  proto::RankMessage message;
  proto::Join* join = message.mutable_join();
  join->set_protocol_version(kProtocolVersion);
  join->set_job("simulated");
  join->set_role(static_cast<uint32_t>(Role::kWorker));
  join->set_world(liar.world);
  join->set_rank(static_cast<uint32_t>(run_.Below(liar.world)));
  join->set_any_rank(run_.Below(4) == 0);
  join->set_group(absl::StrCat("z", group));
  join->set_mode(1 + AnyNumber() % 3);
  join->set_incarnation(connection);
  join->set_returning(run_.Below(2) == 0);
  join->set_shown_version(AnyVersion());
  *join->mutable_shown_round() = AnyRound(liar);
  join->set_committed_version(AnyVersion());
  join->set_catch_up(run_.Below(2) == 0);
  if (run_.Below(4) == 0) {
    *join->mutable_doubt()->mutable_round() = AnyRound(liar);
    join->mutable_doubt()->set_version(AnyVersion());
  }
  if (run_.Below(2) == 0) join->set_deadline_ms(1 + static_cast<int64_t>(run_.Below(300)));
  if (run_.Below(4) == 0) Spoil(*join);
  liar.stranger = run_.Below(4) == 0;
  const bool garbage = run_.Below(16) == 0;
  const std::string& head = ManifestOf(liar.stranger).head;
  coordinator->OnMessage(connection, message, run_.now());
  proto::RankMessage manifest;
  manifest.mutable_manifest()->set_head(garbage ? "garbage" : head);
  coordinator->OnMessage(connection, manifest, run_.now());
}

void Liars::Spoil(proto::Join& join) {
  switch (run_.Below(7)) {
    case 0:
      return join.set_protocol_version(AnyNumber());
    case 1:
      return join.set_role(3 + AnyNumber() % 8);
    case 2:
      return join.set_job("another");
    case 3:
      return join.set_rank(join.world());
    case 4:
      return join.set_group(std::string(run_.Below(2) * 257, 'z'));
    case 5:
      return join.set_mode(4);
    default:
      join.set_role(static_cast<uint32_t>(Role::kTrainer));
      join.mutable_doubt()->set_version(AnyVersion());
  }
}

proto::RankMessage Liars::Lie(const Liar& liar) {
  proto::RankMessage m;
  const proto::Error error = EncodeError(absl::UnavailableError("a lie"));
  switch (run_.Below(19)) {
    case 0:
      m.mutable_offers()->set_epoch(liar.epoch);
      m.mutable_offers()->set_relay(run_.Below(2) == 0);
      for (uint64_t lanes = run_.Below(4); lanes > 0; --lanes) {
        proto::Lane* lane = m.mutable_offers()->add_lanes();
        lane->set_peer(AnyNumber());
        lane->set_address("nowhere");
        lane->set_co_owner(run_.Below(4) == 0);
      }
      break;
    case 1:
      m.mutable_connected()->set_epoch(liar.epoch);
      m.mutable_connected()->set_relay(run_.Below(2) == 0);
      break;
    case 2:
      m.mutable_connect_failed()->set_epoch(liar.epoch);
      *m.mutable_connect_failed()->mutable_error() = error;
      break;
    case 3:
      m.mutable_nics()->add_nics()->set_name(absl::StrCat("nic", AnyNumber()));
      break;
    case 4:
      m.mutable_publish()->set_version(AnyVersion());
      break;
    case 5:
      m.mutable_withdraw()->set_version(AnyVersion());
      break;
    case 6:
      *m.mutable_ready()->mutable_round() = AnyRound(liar);
      m.mutable_ready()->set_buffer_index(AnyNumber());
      m.mutable_ready()->set_generation(AnyNumber());
      if (run_.Below(2) == 0) m.mutable_ready()->mutable_buffer()->add_regions()->set_key("none");
      break;
    case 7:
      *m.mutable_refused()->mutable_round() = AnyRound(liar);
      *m.mutable_refused()->mutable_error() = error;
      break;
    case 8:
      *m.mutable_arrived()->mutable_round() = AnyRound(liar);
      break;
    case 9:
      *m.mutable_failed()->mutable_round() = AnyRound(liar);
      *m.mutable_failed()->mutable_error() = error;
      break;
    case 10:
      m.mutable_lane_failed()->set_epoch(liar.epoch);
      m.mutable_lane_failed()->set_peer(AnyNumber());
      m.mutable_lane_failed()->set_co_owner(run_.Below(2) == 0);
      m.mutable_lane_failed()->set_relay(run_.Below(2) == 0);
      *m.mutable_lane_failed()->mutable_error() = error;
      break;
    case 11:
      *m.mutable_shown()->mutable_round() = AnyRound(liar);
      m.mutable_shown()->set_version(AnyVersion());
      break;
    case 12:
      *m.mutable_lacking()->mutable_round() = AnyRound(liar);
      m.mutable_lacking()->add_senders(AnyNumber());
      break;
    case 13:
      *m.mutable_kept()->mutable_round() = AnyRound(liar);
      m.mutable_kept()->set_kept(true);
      break;
    case 14:
      *m.mutable_relay_stopped()->mutable_round() = AnyRound(liar);
      break;
    case 15:
      m.mutable_held()->set_version(AnyVersion());
      break;
    case 16:
      m.mutable_decide()->set_version(AnyVersion());
      break;
    case 17:
      m.mutable_report()->set_version(AnyVersion());
      break;
    default:
      m.mutable_sent()->mutable_round()->set_epoch(liar.epoch);
  }
  return m;
}

}  // namespace waybill::simulation
