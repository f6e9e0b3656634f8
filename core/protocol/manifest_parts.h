// SPDX-License-Identifier: Apache-2.0

// Collects the manifests of ranks. A part that several manifests share is transferred once.
#ifndef WAYBILL_CORE_PROTOCOL_MANIFEST_PARTS_H_
#define WAYBILL_CORE_PROTOCOL_MANIFEST_PARTS_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/rank_id.h"
#include "core/protocol/membership.h"
#include "core/tensor/manifest.h"
#include "core/tensor/manifest_codec.h"

namespace waybill {

// Every rank names the parts of its manifest by their hashes. For each part, one rank that has it
// is asked. If that rank leaves or does not answer, another rank is asked as well, so that a rank
// that hangs does not keep the others from joining. If a part cannot be decoded, its sender is
// refused. If a complete manifest is invalid, every rank that claims it is refused. Pure; not
// thread-safe.
//
// Decoding and checking take long, so the caller can run them on another thread: `Work` does not
// access this object, but the function that it returns does.
class ManifestParts {
 public:
  using Work = std::function<std::function<void()>()>;
  struct Ask {
    ConnectionId rank = 0;
    PartId part;
  };
  // The manifest of a rank, or the reason why the rank cannot be a member.
  struct Settled {
    ConnectionId rank = 0;
    absl::StatusOr<Manifest> manifest;
  };

  bool Contains(ConnectionId rank) const { return claims_.contains(rank); }
  // Adds a rank that has joined with this head. Call it once for each rank.
  void Add(ConnectionId rank, Role role, ManifestHead head);
  void Remove(ConnectionId rank);
  // Handles a compressed part from a rank. The part is ignored if the rank was not asked for it, or
  // if another rank has sent it.
  void OnPart(ConnectionId rank, const PartId& id, std::string deflated);

  // Return the asks, work and results since the last call.
  std::vector<Ask> TakeAsks(absl::Time now);
  std::vector<Work> TakeWork();
  std::vector<Settled> TakeSettled();
  // Returns the time at which TakeAsks() must be called again if no part arrives.
  absl::Time next_deadline() const;

 private:
  // The parts of a manifest, by hash. The role matters because workers' manifests are checked more
  // strictly than trainers'.
  struct Key {
    Role role;
    std::string tensors;
    std::string holdings;

    auto operator<=>(const Key&) const = default;
    PartId tensors_id() const { return {PartKind::kTensors, tensors}; }
    PartId holdings_id() const { return {PartKind::kHoldings, holdings}; }
  };
  struct Claim {
    Key key;
    ManifestHead head;
  };
  struct Part {
    enum class State { kAbsent, kAsked, kReading, kHere };
    State state = State::kAbsent;
    uint32_t claims = 0;             // The number of ranks that still need the part.
    std::set<ConnectionId> waiting;  // The ranks among these whose manifests are not settled.
    std::set<ConnectionId> asked;    // kAsked.
    // kAsked: the time at which another rank is asked.
    absl::Time ask_next = absl::InfiniteFuture();
    ConnectionId sender = 0;  // kReading.
    Manifest tensors;         // kHere.
    std::shared_ptr<const std::string> holdings;
  };
  struct Made {
    uint32_t claims = 0;
    std::set<ConnectionId> unsettled;
    bool begun = false;
    // Null until the manifest is checked.
    std::shared_ptr<const absl::StatusOr<Manifest>> manifest;
  };

  // The result of decoding a part.
  struct Read {
    Manifest tensors;
    std::shared_ptr<const std::string> holdings;
  };

  void OnRead(const PartId& id, ConnectionId sender, absl::StatusOr<Read> read);
  void OnMade(const Key& key, std::shared_ptr<const absl::StatusOr<Manifest>> manifest);
  Part* Find(const PartId& id);
  // Schedules the next ask for a part: now if no rank is being asked for it, otherwise at
  // `ask_next`.
  void Want(const PartId& id, Part& part, absl::Time ask_next);
  // Removes the rank from the ranks with unsettled manifests. Returns false if it was not one of
  // them.
  bool Settle(ConnectionId rank);
  // Forgets a part that no rank needs any more.
  void Release(const PartId& id, uint32_t claims);

  std::map<ConnectionId, Claim> claims_;
  std::map<PartId, Part> parts_;  // The parts that unsettled ranks need, and all tensors.
  std::set<std::pair<absl::Time, PartId>> wanted_;  // By Part::ask_next, if there is a rank to ask.
  std::map<Key, Made> made_;                        // One entry for each claimed manifest.
  std::set<Key> parts_here_;  // Manifests to check: all their parts may have arrived.
  std::set<Key> to_settle_;   // Checked manifests with unsettled ranks.
  std::vector<Work> work_;
  std::vector<Settled> refused_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_MANIFEST_PARTS_H_
