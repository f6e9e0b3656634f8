#include "core/protocol/manifest_parts.h"

#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/deflate.h"
#include "core/base/status.h"
#include "core/tensor/manifest_check.h"

namespace waybill {
namespace {

// How long a rank may take to send a part before another one is asked as well.
constexpr absl::Duration kPatience = absl::Seconds(5);

// Far more than a rank of any model needs.
constexpr size_t kMostPartBytes = size_t{1} << 30;

absl::StatusOr<std::string> Read(const PartId& id, const std::string& deflated) {
  WAYBILL_ASSIGN_OR_RETURN(std::string bytes, Inflate(deflated, kMostPartBytes));
  if (DigestOfPart(bytes) != id.digest) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest: a part of ", bytes.size(), " bytes has another digest"));
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
  made_.try_emplace(key);
  parts_.try_emplace(key.tensors_id());
  if (made_[key].manifest == nullptr) parts_.try_emplace(key.holdings_id());
}

void ManifestParts::Remove(ConnectionId rank) {
  if (claims_.erase(rank) == 0) return;
  for (auto& [id, part] : parts_) {
    if (part.state != Part::State::kAsked || part.asked.erase(rank) == 0) continue;
    if (part.asked.empty()) part = Part();
  }
  Forget();
}

// Drops what no rank claims any more, and holdings of which all manifests are made.
void ManifestParts::Forget() {
  std::set<Key> keys;
  std::set<PartId> needed;
  for (const auto& [rank, claim] : claims_) {
    keys.insert(claim.key);
    needed.insert(claim.key.tensors_id());
    if (made_[claim.key].manifest == nullptr) needed.insert(claim.key.holdings_id());
  }
  std::erase_if(made_, [&](const auto& made) { return !keys.contains(made.first); });
  std::erase_if(parts_, [&](const auto& part) { return !needed.contains(part.first); });
}

ManifestParts::Part* ManifestParts::Find(const PartId& id) {
  const auto part = parts_.find(id);
  return part == parts_.end() ? nullptr : &part->second;
}

void ManifestParts::OnPart(ConnectionId rank, const PartId& id, std::string deflated) {
  Part* part = Find(id);
  if (part == nullptr || part->state > Part::State::kAsked) return;
  part->state = Part::State::kReading;
  part->sender = rank;
  work_.push_back([this, id, rank, deflated = std::move(deflated)] {
    auto read = std::make_shared<absl::StatusOr<Part>>(Part{.state = Part::State::kHere});
    absl::StatusOr<std::string> bytes = Read(id, deflated);
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

void ManifestParts::OnRead(const PartId& id, ConnectionId sender, absl::StatusOr<Part> read) {
  Part* part = Find(id);
  if (part == nullptr || part->state != Part::State::kReading || part->sender != sender) return;
  if (read.ok()) {
    *part = *std::move(read);
    return;
  }
  *part = Part();
  if (claims_.contains(sender)) refused_.push_back({sender, read.status()});
}

std::vector<ManifestParts::Ask> ManifestParts::TakeAsks(absl::Time now) {
  std::vector<Ask> asks;
  for (const auto& [rank, claim] : claims_) {
    for (const PartId& id : {claim.key.tensors_id(), claim.key.holdings_id()}) {
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

bool ManifestParts::CanAskAnother(const PartId& id, const Part& part) const {
  return std::any_of(claims_.begin(), claims_.end(), [&](const auto& claim) {
    const Key& key = claim.second.key;
    return (id == key.tensors_id() || id == key.holdings_id()) && !part.asked.contains(claim.first);
  });
}

absl::Time ManifestParts::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, part] : parts_) {
    if (part.state == Part::State::kAsked && part.ask_next < next && CanAskAnother(id, part)) {
      next = part.ask_next;
    }
  }
  return next;
}

std::vector<ManifestParts::Work> ManifestParts::TakeWork() {
  for (auto& [key, made] : made_) {
    const Part* tensors = Find(key.tensors_id());
    const Part* holdings = Find(key.holdings_id());
    if (made.begun || tensors == nullptr || tensors->state != Part::State::kHere ||
        holdings == nullptr || holdings->state != Part::State::kHere) {
      continue;
    }
    made.begun = true;
    work_.push_back([this, key = key, tensors = tensors->tensors, holdings = holdings->holdings] {
      auto manifest =
          std::make_shared<const absl::StatusOr<Manifest>>(Make(key.role, tensors, *holdings));
      return [this, key, manifest] {
        if (const auto found = made_.find(key); found != made_.end()) {
          found->second.manifest = manifest;
        }
        Forget();
      };
    });
  }
  return std::exchange(work_, {});
}

std::vector<ManifestParts::Settled> ManifestParts::TakeSettled() {
  std::vector<Settled> settled = std::exchange(refused_, {});
  for (auto& [rank, claim] : claims_) {
    const auto& made = made_.at(claim.key).manifest;
    if (claim.settled || made == nullptr) continue;
    claim.settled = true;
    settled.push_back({rank, *made});
    if (!made->ok()) continue;
    Manifest& manifest = *settled.back().manifest;
    manifest.set_host(claim.head.host);
    manifest.nics() = claim.head.nics;
  }
  return settled;
}

}  // namespace waybill
