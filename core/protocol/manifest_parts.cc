// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/manifest_parts.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/deflate.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

// The time after which another rank is asked for a part as well.
constexpr absl::Duration kPatience = absl::Seconds(5);

absl::StatusOr<std::string> InflatePart(const PartId& id, const std::string& deflated) {
  WAYBILL_ASSIGN_OR_RETURN(std::string bytes, Inflate(deflated, kMostPartBytes));
  if (Sha256(bytes) != id.hash) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest: a part of ", bytes.size(), " bytes has another hash"));
  }
  return bytes;
}

absl::StatusOr<Manifest> Make(Role role, const Manifest& tensors, const std::string& holdings) {
  WAYBILL_ASSIGN_OR_RETURN(Manifest manifest, DecodeHoldings(holdings, tensors));
  WAYBILL_RETURN_IF_ERROR(
      CheckManifest(manifest, role == Role::kWorker ? Holes::kRefused : Holes::kAllowed));
  WAYBILL_RETURN_IF_ERROR(CheckOrder(manifest));
  return manifest;
}

}  // namespace

void ManifestParts::Add(ConnectionId rank, Role role, ManifestHead head) {
  const Key key{role, head.tensors, head.holdings};
  claims_[rank] = {.key = key, .head = std::move(head)};
  Made& made = made_[key];
  ++made.claims;
  made.unsettled.insert(rank);
  made.manifest != nullptr ? to_settle_.insert(key) : parts_here_.insert(key);
  for (const PartId& id : {key.tensors_id(), key.holdings_id()}) {
    if (id.kind == PartKind::kHoldings && made.manifest != nullptr) continue;
    Part& part = parts_[id];
    ++part.claims;
    part.waiting.insert(rank);
    Want(id, part, part.ask_next);
  }
}

void ManifestParts::Remove(ConnectionId rank) {
  const auto claim = claims_.find(rank);
  if (claim == claims_.end()) return;
  (void)Settle(rank);
  const Key key = claim->second.key;
  claims_.erase(claim);
  for (const PartId& id : {key.tensors_id(), key.holdings_id()}) {
    Part* part = Find(id);
    if (part == nullptr || part->state != Part::State::kAsked || part->asked.erase(rank) == 0) {
      continue;
    }
    if (part->asked.empty()) part->state = Part::State::kAbsent;
    Want(id, *part, part->ask_next);
  }
  const auto made = made_.find(key);
  Release(key.tensors_id(), 1);
  if (made->second.manifest == nullptr) Release(key.holdings_id(), 1);
  if (--made->second.claims > 0) return;
  made_.erase(made);
  parts_here_.erase(key);
  to_settle_.erase(key);
}

bool ManifestParts::Settle(ConnectionId rank) {
  const auto claim = claims_.find(rank);
  if (claim == claims_.end()) return false;
  const Key& key = claim->second.key;
  if (made_.at(key).unsettled.erase(rank) == 0) return false;
  for (const PartId& id : {key.tensors_id(), key.holdings_id()}) {
    if (Part* part = Find(id); part != nullptr) part->waiting.erase(rank);
  }
  return true;
}

void ManifestParts::Want(const PartId& id, Part& part, absl::Time ask_next) {
  wanted_.erase({part.ask_next, id});
  part.ask_next = ask_next;
  if (part.state == Part::State::kAbsent) part.ask_next = absl::InfinitePast();
  const bool another = part.state <= Part::State::kAsked && part.waiting.size() > part.asked.size();
  if (another) wanted_.insert({part.ask_next, id});
}

void ManifestParts::Release(const PartId& id, uint32_t claims) {
  const auto part = parts_.find(id);
  part->second.claims -= claims;
  if (part->second.claims > 0) return;
  wanted_.erase({part->second.ask_next, id});
  parts_.erase(part);
}

ManifestParts::Part* ManifestParts::Find(const PartId& id) {
  const auto part = parts_.find(id);
  return part == parts_.end() ? nullptr : &part->second;
}

void ManifestParts::OnPart(ConnectionId rank, const PartId& id, std::string deflated) {
  Part* part = Find(id);
  if (part == nullptr || part->state != Part::State::kAsked || !part->asked.contains(rank)) return;
  part->state = Part::State::kReading;
  part->sender = rank;
  Want(id, *part, part->ask_next);
  work_.push_back([this, id, rank, deflated = std::move(deflated)] {
    auto read = std::make_shared<absl::StatusOr<Read>>(Read());
    absl::StatusOr<std::string> bytes = InflatePart(id, deflated);
    if (!bytes.ok()) {
      *read = bytes.status();
    } else if (id.kind == PartKind::kHoldings) {
      (*read)->holdings = std::make_shared<const std::string>(*std::move(bytes));
    } else if (auto tensors = DecodeTensors(*bytes); tensors.ok()) {
      (*read)->tensors = *std::move(tensors);
    } else {
      *read = tensors.status();
    }
    return [this, id, rank, read] { OnRead(id, rank, std::move(*read)); };
  });
}

void ManifestParts::OnRead(const PartId& id, ConnectionId sender, absl::StatusOr<Read> read) {
  Part* part = Find(id);
  if (part == nullptr || part->state != Part::State::kReading || part->sender != sender) return;
  part->asked.clear();
  part->state = read.ok() ? Part::State::kHere : Part::State::kAbsent;
  if (read.ok()) {
    part->tensors = std::move(read->tensors);
    part->holdings = std::move(read->holdings);
    for (const ConnectionId rank : part->waiting) parts_here_.insert(claims_.at(rank).key);
    return;
  }
  if (Settle(sender)) refused_.push_back({sender, read.status()});
  Want(id, *part, part->ask_next);
}

void ManifestParts::OnMade(const Key& key,
                           std::shared_ptr<const absl::StatusOr<Manifest>> manifest) {
  const auto made = made_.find(key);
  if (made == made_.end() || made->second.manifest != nullptr) return;
  made->second.manifest = std::move(manifest);
  to_settle_.insert(key);
  Release(key.holdings_id(), made->second.claims);
}

std::vector<ManifestParts::Ask> ManifestParts::TakeAsks(absl::Time now) {
  std::vector<Ask> asks;
  while (!wanted_.empty() && wanted_.begin()->first <= now) {
    const PartId id = wanted_.begin()->second;
    Part& part = parts_.at(id);
    const auto rank =
        std::find_if(part.waiting.begin(), part.waiting.end(),
                     [&](ConnectionId waiting) { return !part.asked.contains(waiting); });
    part.asked.insert(*rank);
    part.state = Part::State::kAsked;
    asks.push_back({*rank, id});
    Want(id, part, now + kPatience);
  }
  return asks;
}

absl::Time ManifestParts::next_deadline() const {
  return wanted_.empty() ? absl::InfiniteFuture() : wanted_.begin()->first;
}

std::vector<ManifestParts::Work> ManifestParts::TakeWork() {
  for (const Key& key : std::exchange(parts_here_, {})) {
    Made& made = made_.at(key);
    const Part* tensors = Find(key.tensors_id());
    const Part* holdings = Find(key.holdings_id());
    if (made.begun || tensors->state != Part::State::kHere ||
        holdings->state != Part::State::kHere) {
      continue;
    }
    made.begun = true;
    work_.push_back([this, key, tensors = tensors->tensors, holdings = holdings->holdings] {
      auto manifest =
          std::make_shared<const absl::StatusOr<Manifest>>(Make(key.role, tensors, *holdings));
      return [this, key, manifest] { OnMade(key, manifest); };
    });
  }
  return std::exchange(work_, {});
}

std::vector<ManifestParts::Settled> ManifestParts::TakeSettled() {
  std::vector<Settled> settled = std::exchange(refused_, {});
  for (const Key& key : std::exchange(to_settle_, {})) {
    const Made& made = made_.at(key);
    for (const ConnectionId rank : std::set<ConnectionId>(made.unsettled)) {
      (void)Settle(rank);
      settled.push_back({rank, *made.manifest});
      if (!made.manifest->ok()) continue;
      const ManifestHead& head = claims_.at(rank).head;
      settled.back().manifest->set_host(head.host);
      settled.back().manifest->set_rack(head.rack);
      settled.back().manifest->nics() = head.nics;
    }
  }
  return settled;
}

}  // namespace waybill
