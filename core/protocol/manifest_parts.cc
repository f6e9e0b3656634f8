#include "core/protocol/manifest_parts.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/deflate.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/protocol/mutation.h"
#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

// How long a rank may take to send a part before another one is asked as well.
constexpr absl::Duration kPatience = absl::Seconds(5);

absl::StatusOr<std::string> InflatePart(const PartId& id, const std::string& deflated) {
  WAYBILL_ASSIGN_OR_RETURN(std::string bytes, Inflate(deflated, kMostPartBytes));
  if (Sha256(bytes) != id.hash && !Mutated(Mutation::kPartsNotCompared)) {
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
  unsettled_.insert(rank);
  Made& made = made_[key];
  ++made.claims;
  ++parts_[key.tensors_id()].claims;
  if (made.manifest == nullptr) ++parts_[key.holdings_id()].claims;
}

void ManifestParts::Remove(ConnectionId rank) {
  const auto claim = claims_.find(rank);
  if (claim == claims_.end()) return;
  const Key key = claim->second.key;
  claims_.erase(claim);
  unsettled_.erase(rank);
  for (const PartId& id : {key.tensors_id(), key.holdings_id()}) {
    Part* part = Find(id);
    if (part == nullptr || part->state != Part::State::kAsked || part->asked.erase(rank) == 0) {
      continue;
    }
    if (part->asked.empty()) part->state = Part::State::kAbsent;
  }
  const auto made = made_.find(key);
  Release(key.tensors_id(), 1);
  if (made->second.manifest == nullptr) Release(key.holdings_id(), 1);
  if (--made->second.claims == 0) made_.erase(made);
}

void ManifestParts::Release(const PartId& id, uint32_t claims) {
  const auto part = parts_.find(id);
  part->second.claims -= claims;
  if (part->second.claims == 0) parts_.erase(part);
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
  } else if (unsettled_.erase(sender) > 0) {
    refused_.push_back({sender, read.status()});
  }
}

void ManifestParts::OnMade(const Key& key,
                           std::shared_ptr<const absl::StatusOr<Manifest>> manifest) {
  const auto made = made_.find(key);
  if (made == made_.end() || made->second.manifest != nullptr) return;
  made->second.manifest = std::move(manifest);
  Release(key.holdings_id(), made->second.claims);
}

std::vector<ManifestParts::Ask> ManifestParts::TakeAsks(absl::Time now) {
  std::vector<Ask> asks;
  for (const ConnectionId rank : unsettled_) {
    const Key& key = claims_.at(rank).key;
    for (const PartId& id : {key.tensors_id(), key.holdings_id()}) {
      Part* part = Find(id);
      if (part == nullptr || part->state > Part::State::kAsked) continue;
      if (part->state == Part::State::kAsked && now < part->ask_next) continue;
      if (!part->asked.insert(rank).second) continue;
      part->state = Part::State::kAsked;
      part->ask_next = now + kPatience;
      asks.push_back({rank, id});
    }
  }
  return asks;
}

absl::Time ManifestParts::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, part] : parts_) {
    const bool another = part.claims > part.asked.size();
    if (part.state == Part::State::kAsked && another) next = std::min(next, part.ask_next);
  }
  return next;
}

std::vector<ManifestParts::Work> ManifestParts::TakeWork() {
  for (const ConnectionId rank : unsettled_) {
    const Key& key = claims_.at(rank).key;
    Made& made = made_.at(key);
    if (made.begun) continue;
    const Part* tensors = Find(key.tensors_id());
    const Part* holdings = Find(key.holdings_id());
    if (tensors->state != Part::State::kHere || holdings->state != Part::State::kHere) continue;
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
  for (auto rank = unsettled_.begin(); rank != unsettled_.end();) {
    const Claim& claim = claims_.at(*rank);
    const auto& made = made_.at(claim.key).manifest;
    if (made == nullptr) {
      ++rank;
      continue;
    }
    settled.push_back({*rank, *made});
    if (made->ok()) {
      settled.back().manifest->set_host(claim.head.host);
      settled.back().manifest->set_rack(claim.head.rack);
      settled.back().manifest->nics() = claim.head.nics;
    }
    rank = unsettled_.erase(rank);
  }
  return settled;
}

}  // namespace waybill
