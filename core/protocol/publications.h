// SPDX-License-Identifier: Apache-2.0

// The versions that are being published, and those that were given up. Pure; not thread-safe.
#ifndef WAYBILL_CORE_PROTOCOL_PUBLICATIONS_H_
#define WAYBILL_CORE_PROTOCOL_PUBLICATIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/protocol/messages.pb.h"

namespace waybill {

// A version's way through one group.
struct Part {
  enum class State { kQueued, kOpen, kCommitted, kGivenUp };
  State state = State::kQueued;
  absl::Status status;     // Why it was given up.
  bool unchanged = false;  // The group showed the same bytes before.

  bool committed() const { return state == State::kCommitted; }
  bool over() const { return committed() || state == State::kGivenUp; }
};

// A version that is being published. It is opened once, for the groups that are whole then.
struct Publication {
  // One trainer's call.
  struct Publish {
    uint64_t attempt = 0;
    absl::Time deadline;
    absl::Time received;
    bool hold = false;                   // The trainer holds the version once it is SENT.
    std::vector<uint64_t> sampled = {};  // The units whose digests it has sent.
  };
  uint64_t version = 0;
  std::map<uint32_t, Publish> publishes = {};  // By trainer.
  // The earliest times among them; InfiniteFuture if there are none.
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time received = absl::InfiniteFuture();
  std::map<uint64_t, std::map<uint32_t, uint64_t>> digests = {};  // By unit, by trainer.
  bool digests_off = false;
  bool hold_commit = false;  // Its groups wait for a trainer's word.
  uint64_t composition = 0;  // See UpdateId::composition.
  // The tensors that were to be taken over, and that none of these trainers has.
  std::set<std::string> unknown_tensors = {};
  bool commits = false;  // The word has come.
  bool opened = false;
  std::map<std::string, Part> parts = {};  // By group.
  size_t queued = 0, unfinished = 0;       // The numbers of such parts.

  bool waits_for_word() const { return hold_commit && !commits; }
  // Returns false if the trainer does not publish it.
  bool Remove(uint32_t trainer);
  void SetPart(const std::string& group, Part part);
  // Returns a unit of which the trainer and another one, which is returned too, have sent different
  // digests; null if there is none.
  std::optional<std::pair<uint64_t, uint32_t>> FindDifference(uint32_t trainer) const;
};

class Publications {
 public:
  // Adds a trainer's call to its version. It replaces what the trainer has published before.
  Publication& Add(uint32_t trainer, const proto::Publish& publish, absl::Time now);
  // Returns null if the version is not being published.
  Publication* Find(uint64_t version);
  // Returns the trainers that publish later versions and not this one, with such a version of each.
  std::map<uint32_t, uint64_t> OvertakersOf(const Publication& publication) const;
  // Returns null if the trainer does not publish the version with that attempt.
  Publication* Find(uint32_t trainer, uint64_t version, uint64_t attempt);
  // By version. Erase what is over.
  std::map<uint64_t, Publication>& all() { return all_; }
  const std::map<uint64_t, Publication>& all() const { return all_; }
  // Forgets what is not opened and what nobody publishes any more.
  void DropUnwanted();

  // A version is given up. It must not be committed because trainers publish it that have yet to
  // be told.
  void GiveUp(uint64_t version, std::set<uint32_t> untold, const absl::Status& why);
  bool IsGivenUp(uint64_t version) const { return given_up_.contains(version); }
  // The trainer is told that a version was given up. Returns why; OK if there is nothing to tell.
  absl::Status Tell(uint64_t version, uint32_t trainer);
  // A trainer is lost, and may not have heard what it was told last.
  void ForgetWhatWasTold(uint32_t trainer);
  // Nobody publishes versions up to this one any more.
  void ForgetGivenUp(uint64_t committed_version);

  // The newest version that any trainer has published, also if it failed.
  uint64_t newest_version() const { return newest_version_; }

 private:
  struct GivenUp {
    std::set<uint32_t> untold;
    absl::Status why;
  };

  std::map<uint64_t, Publication> all_;
  std::map<uint64_t, GivenUp> given_up_;  // By version.
  uint64_t newest_version_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_PUBLICATIONS_H_
