// SPDX-License-Identifier: Apache-2.0

// The network between simulated NICs and its clock. It moves requests from queue pair to queue pair
// when a completion queue is polled. It also holds the lock and the list of misuses.
#ifndef WAYBILL_TESTING_FAKE_VERBS_WIRE_H_
#define WAYBILL_TESTING_FAKE_VERBS_WIRE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "testing/fake_verbs/device.h"

namespace waybill::fake_verbs {

struct WireOptions {
  // 0: each poll moves all that can move, by queue pairs in the order of their creation. Otherwise
  // it moves some requests of random queue pairs; the same seed and calls give the same order.
  uint64_t seed = 0;
  // The number of polls after which a request gives up a peer that does not answer.
  uint32_t patience = 0;
  // The largest number of polls by which a completion is late.
  uint32_t completion_delay = 0;
};

class Wire {
 public:
  explicit Wire(const WireOptions& options) : options_(options), random_(options.seed) {}

  // Held during every call of a program and of a script.
  std::mutex& mutex() { return mutex_; }

  Device* AddDevice(const std::string& name, const DeviceOptions& options);
  void Add(QueuePair* queue_pair) { queue_pairs_[queue_pair->identity()] = queue_pair; }
  void Remove(QueuePair* queue_pair) { queue_pairs_.erase(queue_pair->identity()); }
  // Returns null if the queue pair is gone.
  QueuePair* Find(uint64_t identity) const;
  uint64_t NextIdentity() { return ++last_identity_; }

  using End = std::pair<const Device*, uint8_t>;
  void Cut(End a, End b) { cuts_.insert(std::minmax(a, b)); }
  void Heal(End a, End b) { cuts_.erase(std::minmax(a, b)); }
  // Loses packets of more than `bytes` of data between two ports, in both directions.
  void DropLonger(End a, End b, uint64_t bytes) { longest_[std::minmax(a, b)] = bytes; }
  bool Resolves(const ibv_gid& gid) const;

  // Advances the clock by one tick and moves what can move.
  void Tick();
  uint64_t now() const { return now_; }
  // The time that calls of the calling thread have taken.
  void Spend(absl::Duration time) { spent_[std::this_thread::get_id()] += time; }
  absl::Duration spent() const {
    const auto found = spent_.find(std::this_thread::get_id());
    return found == spent_.end() ? absl::ZeroDuration() : found->second;
  }
  uint64_t VisibleAt();
  // Returns true if a later tick may bring a completion without a program's action. Only polls
  // advance the clock, so a queue that is armed then delivers its event at once.
  bool IsBusy() const;
  // Delivers the events of queues that are armed, if what `poster` posted may take more than one
  // tick.
  void KeepAwake(const ibv_qp& poster) const;

  // Records misuse by a program. A test that does not expect it fails.
  int Misuse(absl::string_view what, int error);
  std::vector<std::string> TakeMisuses() { return std::exchange(misuses_, {}); }
  void Lives(const void* object) { alive_.insert(object); }
  void Died(const void* object) { alive_.erase(object); }
  // Returns false and records misuse if the object was destroyed or never made.
  bool IsAlive(const void* object, absl::string_view call);

  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }

 private:
  bool Advance(QueuePair& from);
  // Returns true if time alone ends the wait for the peer, which is null if nobody answers.
  static bool WaitsForEver(const QueuePair& from, const QueuePair* to);
  // Returns null if nobody answers there.
  QueuePair* PeerOf(const QueuePair& from) const;
  // Returns true if a packet of the request is too long for the path.
  bool IsLost(const QueuePair& from, const SendRequest& request) const;
  End Target(const QueuePair& from) const;
  static std::optional<ibv_gid_type> KindOf(const QueuePair& of);
  using Pieces = std::vector<std::pair<std::byte*, size_t>>;
  // Finds the request's own bytes. Returns false if it may not use them.
  static bool Gather(const QueuePair& from, SendRequest& request, Pieces& pieces);
  // Copies between the pieces and the peer's bytes, in the request's direction.
  static void Copy(const SendRequest& request, const Pieces& pieces, std::byte* at_peer);

  std::mutex mutex_;
  const WireOptions options_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::map<uint64_t, QueuePair*> queue_pairs_;
  std::set<std::pair<End, End>> cuts_;
  std::map<std::pair<End, End>, uint64_t> longest_;
  uint64_t last_identity_ = 0;
  uint64_t now_ = 0;
  std::map<std::thread::id, absl::Duration> spent_;
  std::unordered_set<const void*> alive_;
  std::vector<std::string> misuses_;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_WIRE_H_
