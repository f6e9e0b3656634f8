// SPDX-License-Identifier: Apache-2.0

// Collects the manifests of ranks, each part of which travels once.
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

// Every rank says by hashes what its manifest consists of. One rank that has a part is asked for
// it. If that rank goes away or stays silent, another one is asked as well, so that one rank that
// hangs does not keep the others from joining. A part that cannot be read is its sender's fault. If
// a complete manifest is invalid, every rank that claims it is refused. Pure; not thread-safe.
//
// Reading and checking take long, so they are work for others: `Work` is called without this
// object, and what it returns is called with it.
class ManifestParts {
 public:
  using Work = std::function<std::function<void()>()>;
  struct Ask {
    ConnectionId rank = 0;
    PartId part;
  };
  // The manifest of a rank, or why the rank cannot be a member.
  struct Settled {
    ConnectionId rank = 0;
    absl::StatusOr<Manifest> manifest;
  };

  bool Contains(ConnectionId rank) const { return claims_.contains(rank); }
  // A rank has joined with this head; once for each rank.
  void Add(ConnectionId rank, Role role, ManifestHead head);
  void Remove(ConnectionId rank);
  // A part has come from a rank, compressed. It is ignored if the rank was not asked for it, or if
  // another one has sent it.
  void OnPart(ConnectionId rank, const PartId& id, std::string deflated);

  // Return what has come up since the last call.
  std::vector<Ask> TakeAsks(absl::Time now);
  std::vector<Work> TakeWork();
  std::vector<Settled> TakeSettled();
  // When TakeAsks() has something to return next if nothing comes.
  absl::Time next_deadline() const;

 private:
  // What a manifest consists of. Workers are checked more strictly than trainers.
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
    uint32_t claims = 0;             // The number of ranks that still need it.
    std::set<ConnectionId> waiting;  // Those among them whose manifests are not settled.
    std::set<ConnectionId> asked;    // kAsked.
    absl::Time ask_next = absl::InfiniteFuture();  // kAsked: when another rank is asked.
    ConnectionId sender = 0;                       // kReading.
    Manifest tensors;                              // kHere.
    std::shared_ptr<const std::string> holdings;
  };
  struct Made {
    uint32_t claims = 0;
    std::set<ConnectionId> unsettled;
    bool begun = false;
    std::shared_ptr<const absl::StatusOr<Manifest>> manifest;  // Null until it is done.
  };

  // What reading a part has given.
  struct Read {
    Manifest tensors;
    std::shared_ptr<const std::string> holdings;
  };

  void OnRead(const PartId& id, ConnectionId sender, absl::StatusOr<Read> read);
  void OnMade(const Key& key, std::shared_ptr<const absl::StatusOr<Manifest>> manifest);
  Part* Find(const PartId& id);
  // Schedules the next ask for a part: now if nobody is asked for it, else at `ask_next`.
  void Want(const PartId& id, Part& part, absl::Time ask_next);
  // Takes the rank out of those whose manifests are awaited. Returns false if it was not one.
  bool Settle(ConnectionId rank);
  // Forgets a part that nobody needs any more.
  void Release(const PartId& id, uint32_t claims);

  std::map<ConnectionId, Claim> claims_;
  std::map<PartId, Part> parts_;  // The parts that unsettled ranks need, and all tensors.
  std::set<std::pair<absl::Time, PartId>> wanted_;  // By Part::ask_next, if there is a rank to ask.
  std::map<Key, Made> made_;                        // One for each manifest that is claimed.
  std::set<Key> parts_here_;  // Manifests to look at: their parts may all be here now.
  std::set<Key> to_settle_;   // Manifests that are made and have unsettled ranks.
  std::vector<Work> work_;
  std::vector<Settled> refused_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_MANIFEST_PARTS_H_
