// SPDX-License-Identifier: Apache-2.0

// The receiving side of a receiver's updates: offers buffers, counts arrivals, verifies and shows.
//
// The engine takes commands and reports events. It does not talk to the controller. Any thread may
// call TakeSnapshot(), Verify(), CompareShown(), shown_version() and dirty(). All other calls come
// from one thread, the progress thread, which hands on the fabric's events and calls Step(). No
// call blocks.
#ifndef WAYBILL_CORE_ENGINE_RECEIVER_ENGINE_H_
#define WAYBILL_CORE_ENGINE_RECEIVER_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/engine/relayed_routes.h"
#include "core/engine/shown_state.h"
#include "core/engine/timeline.h"
#include "core/fabric/fabric.h"
#include "core/plan/route_table.h"
#include "core/protocol/update.h"
#include "core/stage/stage_piece.h"
#include "core/tensor/manifest.h"

namespace waybill {

struct ReceiverEngineOptions {
  Mode mode = Mode::kShadow;
  std::optional<int> arena_gpu;        // As ReceiverMemory has it.
  uint32_t verify_threads = 1;         // 0: the progress thread verifies.
  uint64_t chunk_bytes = kChunkBytes;  // As the senders cut what they send.

  // The best `verify_threads` on a GPU: while one waits for it, others have work queued.
  static constexpr uint32_t kGpuVerifyThreads = 4;
};

struct ReceiverEvent {
  enum class Kind : uint8_t {
    kConnected = 1,   // Every lane of the plan carries.
    kPeerFailed = 2,  // The lane to `sender` is dead.
    kReady = 3,       // The update may come, into `buffer_index`.
    kRefused = 4,     // It may not; nothing has changed.
    kArrived = 5,     // The whole update is here, and every digest is right.
    // Before Commit(): a digest or a ledger entry is wrong, or a device failed. After Commit():
    // copying to the inference engine's memory failed, and nothing can be read.
    kFailed = 6,
    kShown = 7,  // The version is shown. Follows Commit().
    // All of it is here and right but what the `lacking` senders were to bring, whose lanes are
    // dead. Continue() or Abort() is to come.
    kLacking = 8,
  };
  Kind kind = Kind::kConnected;
  UpdateId update;
  uint32_t sender = 0;                 // For kPeerFailed, with why.
  absl::Status status;                 // For kPeerFailed, kRefused, kFailed.
  uint32_t buffer_index = 0;           // For kReady.
  BufferAddress address;               // For kReady: where that buffer is now.
  absl::Duration pause;                // For kShown: what copying took.
  bool unchanged = false;              // For kShown: its bytes are those of the version before.
  std::vector<uint32_t> lacking = {};  // For kLacking.
};

struct SenderAddress {
  uint32_t sender = 0;
  std::vector<std::string> lane_addresses;  // In the order of the lanes.
};

// The result of comparing what is shown with the digests with which it came.
struct Comparison {
  uint64_t version = 0;  // 0: nothing could be read.
  uint64_t bytes = 0;    // How many were compared.
  absl::Status status;
};

// Counters since the engine was made.
struct ReceiverCounts {
  uint64_t verified_bytes = 0;
  uint64_t arrived_bytes = 0;  // Digested, if digests are on, or verified.
  uint64_t early_chunks = 0;   // Verified while later ones arrived.
  uint64_t stragglers = 0;
  uint64_t repeats = 0;
  uint64_t renewals = 0;  // Abandoned buffers that got fresh pages and keys.
  // Versions that were shown with the bytes of the version before. Those without digests, or of
  // another plan than the version before, are not compared.
  uint64_t unchanged_versions = 0;
  // Waybill's own buffers in which updates arrive. None in place, in the engine's memory.
  uint64_t host_buffer_bytes = 0;
  uint64_t gpu_buffer_bytes = 0;
};

class ReceiverEngine {
 public:
  using EventSink = std::function<void(const ReceiverEvent&)>;

  // `fabric` outlives the engine. `user_regions` as ReceiverMemory has it. All memory is reserved
  // when this returns. `sink` is called on the progress thread, from within calls.
  static absl::StatusOr<std::unique_ptr<ReceiverEngine>> Create(
      Fabric* fabric, Manifest manifest, const std::vector<MemorySpan>& user_regions,
      const ReceiverEngineOptions& options, EventSink sink);
  virtual ~ReceiverEngine() = default;

  // Replaces the plan, and returns the lanes of the new one. Closes the lanes of the old one that
  // are not kept. An update that was being received is over; one that lacks what dead lanes were to
  // bring, or has arrived whole, waits as before, and one that is committed is shown. `lanes`:
  // those to each sender. kFailedPrecondition: one that is to be kept is dead.
  virtual absl::StatusOr<std::vector<LaneOffer>> SetPlan(RouteTable arrivals, uint64_t plan_hash,
                                                         const TermLanes& lanes) = 0;
  // Reports to `relay` which of the plan's arrivals can be read. `relay` must stay valid until the
  // next SetPlan() or CloseLanes() has returned.
  virtual void RelayBy(RelayedRoutes* relay) = 0;
  // The routes of the plan.
  virtual const RouteTable& arrivals() const = 0;
  // Where the update at hand arrives, by region; after kReady.
  virtual std::vector<MemorySpan> Receiving() const = 0;
  // Where the senders write; after SetPlan().
  virtual absl::StatusOr<std::vector<BufferAddress>> Describe() = 0;

  // Connects every lane that is not kept. kConnected follows, or kPeerFailed for each sender that
  // cannot be reached.
  virtual absl::Status Connect(absl::Span<const SenderAddress> senders) = 0;

  // Prepares a buffer for an update. kReady follows once no reader holds the buffer and what is
  // committed is shown. kRefused follows if the update cannot be received, or from the first Step()
  // after the deadline. Neither follows if Abort(), SetPlan() or CloseLanes() comes first. If
  // senders of an earlier update may still write to the buffer, it first gets fresh pages, which
  // their writes do not reach.
  virtual void Prepare(const UpdateId& update, Digests digests, absl::Time deadline) = 0;

  // Goes on with what has arrived of the update `from`, as the update `to` of the present plan.
  // After kLacking, for a plan that brings what is lacking: kReady follows, and kArrived once all
  // of it is here; whoever was to bring it before cannot write any more. After kArrived: nothing
  // follows. kRefused follows if there is no such update.
  virtual void Continue(const UpdateId& from, const UpdateId& to) = 0;
  // Closes the lanes to a sender that is gone. kPeerFailed follows.
  virtual void LoseSender(uint32_t sender, const absl::Status& why) = 0;

  // After kArrived; kShown follows. Final: neither Abort() nor another plan undoes it.
  virtual void Commit(const UpdateId& update) = 0;

  // Gives the update up, unless it is committed. `begun`: data may have landed; in place that
  // leaves the memory dirty.
  virtual void Abort(const UpdateId& update, bool begun) = 0;

  // Every lane is quiescent and gone: nobody writes to this receiver any more. Readers go on, and
  // so does showing what is committed.
  virtual void CloseLanes() = 0;

  // Pause() releases the registrations of the inference engine's memory on a GPU, so that the
  // inference engine may unmap it. Until Resume() nobody reads or writes it, and updates are
  // refused. `kept` is false if the contents are lost: nothing can be read before the next version.
  //
  // kFailedPrecondition: an update is at hand, or somebody reads what is shown.
  virtual absl::Status Pause() = 0;
  virtual void Resume(bool kept) = 0;
  // kFailedPrecondition: updates are refused, because of Pause().
  virtual absl::Status MayReceive() const = 0;

  // Takes an event of the fabric. Returns false if it is not of one of this engine's lanes.
  virtual bool Handle(const FabricEvent& event) = 0;
  // Does what can be done at `now`. Call it when events were handled, and when the time of the last
  // PREPARE is over.
  virtual void Step(absl::Time now) = 0;

  // Any thread.
  virtual absl::StatusOr<Snapshot> TakeSnapshot(absl::string_view holder) = 0;
  // Compares what is shown with the digests with which it came. It holds a snapshot meanwhile, and
  // returns the version.
  //
  // kDataLoss: names what differs. kFailedPrecondition: as TakeSnapshot(), or the version came
  // without digests. kUnavailable: as TakeSnapshot().
  absl::StatusOr<uint64_t> Verify() {
    const Comparison comparison = CompareShown({});
    if (!comparison.status.ok()) return comparison.status;
    return comparison.version;
  }
  // The same, and tells also what was compared if something differs. kCancelled: `stop` was
  // requested.
  virtual Comparison CompareShown(const std::stop_token& stop) = 0;
  // Where a region of what is shown lies.
  virtual MemoryKind shown_kind(uint32_t region) const = 0;
  virtual uint64_t shown_version() const = 0;
  virtual bool dirty() const = 0;

  virtual ReceiverCounts counts() const = 0;
  // The stages of the update that was shown last.
  virtual StageSpans stages() const = 0;
  // How each sender is reached, for people.
  virtual std::vector<LaneReport> ReportLanes() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_RECEIVER_ENGINE_H_
