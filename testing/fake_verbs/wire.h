// The network between simulated NICs, and the time on it: moves requests from queue pair to queue
// pair when a completion queue is polled. Also keeps the lock, and the account of what programs did
// that no program may do.
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
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "testing/fake_verbs/device.h"

namespace waybill::fake_verbs {

struct WireOptions {
  // 0: at each poll all that can move does, by queue pairs in the order of their creation. Else
  // some requests move, of queue pairs in any order; the same seed and calls give the same order.
  uint64_t seed = 0;
  // Polls until a request gives up a peer that does not answer.
  uint32_t patience = 0;
  // Polls by which a completion comes late, at most.
  uint32_t completion_delay = 0;
};

class Wire {
 public:
  explicit Wire(const WireOptions& options) : options_(options), random_(options.seed) {}

  // Every call of a program, and every line of a script, holds it.
  std::mutex& mutex() { return mutex_; }

  Device* AddDevice(const std::string& name, const DeviceOptions& options);
  void Add(QueuePair* queue_pair) { queue_pairs_[queue_pair->identity()] = queue_pair; }
  void Remove(QueuePair* queue_pair) { queue_pairs_.erase(queue_pair->identity()); }
  // Null: it is gone.
  QueuePair* Find(uint64_t identity) const;
  uint64_t NextIdentity() { return ++last_identity_; }

  using End = std::pair<const Device*, uint8_t>;
  void Cut(End a, End b) { cuts_.insert(std::minmax(a, b)); }
  void Heal(End a, End b) { cuts_.erase(std::minmax(a, b)); }
  bool Resolves(const ibv_gid& gid) const;

  // One tick: what can move moves.
  void Tick();
  uint64_t now() const { return now_; }
  uint64_t VisibleAt();
  // Whether a later tick may bring something without any program's doing. Time passes by polls
  // only: who arms a queue then gets its event at once,
  bool IsBusy() const;
  // and so does who armed one before, and then posted what may take more than one tick.
  void KeepAwake(const ibv_qp& poster) const;

  // What a program must not do; a test that does not expect it fails.
  int Misuse(absl::string_view what, int error);
  std::vector<std::string> TakeMisuses() { return std::exchange(misuses_, {}); }
  void Lives(const void* object) { alive_.insert(object); }
  void Died(const void* object) { alive_.erase(object); }
  // False, and a misuse: it was destroyed, or never made.
  bool IsAlive(const void* object, absl::string_view call);

  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }

 private:
  bool Advance(QueuePair& from);
  // Whether time alone ends its wait for a peer: null where nobody answers.
  static bool WaitsForEver(const QueuePair& from, const QueuePair* to);
  // Null: nobody answers there.
  QueuePair* PeerOf(const QueuePair& from) const;
  End Target(const QueuePair& from) const;
  static std::optional<ibv_gid_type> KindOf(const QueuePair& of);
  // The bytes of the request's source; false where it may not read them.
  static bool Gather(const QueuePair& from, const SendRequest& request,
                     std::vector<std::pair<const std::byte*, size_t>>& pieces);

  std::mutex mutex_;
  const WireOptions options_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::map<uint64_t, QueuePair*> queue_pairs_;
  std::set<std::pair<End, End>> cuts_;
  uint64_t last_identity_ = 0;
  uint64_t now_ = 0;
  std::unordered_set<const void*> alive_;
  std::vector<std::string> misuses_;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_WIRE_H_
