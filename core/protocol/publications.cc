// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/publications.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "core/protocol/timeouts.h"

namespace waybill {

bool Publication::Remove(uint32_t trainer) {
  const auto found = publishes.find(trainer);
  if (found == publishes.end()) return false;
  for (const uint64_t unit : found->second.sampled) digests.at(unit).erase(trainer);
  publishes.erase(found);
  deadline = received = absl::InfiniteFuture();
  for (const auto& [other, publish] : publishes) {
    deadline = std::min(deadline, publish.deadline);
    received = std::min(received, publish.received);
  }
  return true;
}

void Publication::SetPart(const std::string& group, Part part) {
  const auto [found, added] = parts.try_emplace(group);
  if (!added) {
    queued -= found->second.state == Part::State::kQueued ? 1 : 0;
    unfinished -= found->second.over() ? 0 : 1;
  }
  queued += part.state == Part::State::kQueued ? 1 : 0;
  unfinished += part.over() ? 0 : 1;
  found->second = std::move(part);
}

std::optional<std::pair<uint64_t, uint32_t>> Publication::FindDifference(uint32_t trainer) const {
  for (const uint64_t unit : publishes.at(trainer).sampled) {
    const std::map<uint32_t, uint64_t>& of_unit = digests.at(unit);
    // All others have the same, or the version would have been refused before.
    const auto other = of_unit.begin()->first == trainer ? of_unit.rbegin() : --of_unit.rend();
    if (other->second != of_unit.at(trainer)) return std::pair(unit, other->first);
  }
  return std::nullopt;
}

Publication& Publications::Add(uint32_t trainer, const proto::Publish& publish, absl::Time now) {
  newest_version_ = std::max(newest_version_, publish.version());
  Publication& publication =
      all_.try_emplace(publish.version(), Publication{publish.version()}).first->second;
  if (publication.publishes.empty() && !publication.opened) {
    publication.digests_off = publish.digests_off();
    publication.hold_commit = publish.hold_commit();
    publication.composition = publish.composition();
    publication.unknown_tensors = {publish.unknown_tensors().begin(),
                                   publish.unknown_tensors().end()};
  }
  std::erase_if(publication.unknown_tensors, [&](const std::string& tensor) {
    return !absl::c_linear_search(publish.unknown_tensors(), tensor);
  });
  (void)publication.Remove(trainer);
  const absl::Time deadline =
      now +
      (publish.deadline_ms() > 0 ? absl::Milliseconds(publish.deadline_ms()) : kPublishTimeout);
  const int sampled = std::min(publish.sampled_units_size(), publish.sampled_digests_size());
  publication.publishes[trainer] = {
      .attempt = publish.attempt(),
      .deadline = deadline,
      .received = now,
      .hold = publish.hold(),
      .sampled = {publish.sampled_units().begin(), publish.sampled_units().begin() + sampled}};
  publication.deadline = std::min(publication.deadline, deadline);
  publication.received = std::min(publication.received, now);
  for (int i = 0; i < sampled; ++i) {
    publication.digests[publish.sampled_units(i)][trainer] = publish.sampled_digests(i);
  }
  return publication;
}

Publication* Publications::Find(uint64_t version) {
  const auto found = all_.find(version);
  return found == all_.end() ? nullptr : &found->second;
}

std::map<uint32_t, uint64_t> Publications::OvertakersOf(const Publication& publication) const {
  std::map<uint32_t, uint64_t> overtakers;
  for (auto later = all_.upper_bound(publication.version); later != all_.end(); ++later) {
    for (const auto& [trainer, publish] : later->second.publishes) {
      if (!publication.publishes.contains(trainer)) overtakers.emplace(trainer, later->first);
    }
  }
  return overtakers;
}

Publication* Publications::Find(uint32_t trainer, uint64_t version, uint64_t attempt) {
  Publication* const publication = Find(version);
  if (publication == nullptr) return nullptr;
  const auto publish = publication->publishes.find(trainer);
  const bool takes_part =
      publish != publication->publishes.end() && publish->second.attempt == attempt;
  return takes_part ? publication : nullptr;
}

void Publications::DropUnwanted() {
  std::erase_if(all_, [](const auto& entry) {
    return !entry.second.opened && entry.second.publishes.empty();
  });
}

void Publications::GiveUp(uint64_t version, std::set<uint32_t> untold, const absl::Status& why) {
  newest_version_ = std::max(newest_version_, version);
  given_up_[version] = {std::move(untold), why};
}

absl::Status Publications::Tell(uint64_t version, uint32_t trainer) {
  const auto given_up = given_up_.find(version);
  const bool untold = given_up != given_up_.end() && given_up->second.untold.erase(trainer) > 0;
  return untold ? given_up->second.why : absl::OkStatus();
}

void Publications::ForgetWhatWasTold(uint32_t trainer) {
  for (auto& [version, given_up] : given_up_) given_up.untold.insert(trainer);
}

void Publications::ForgetGivenUp(uint64_t committed_version) {
  given_up_.erase(given_up_.begin(), given_up_.upper_bound(committed_version));
}

}  // namespace waybill
