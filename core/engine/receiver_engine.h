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
  std::optional<int> arena_gpu;  // The GPU that holds the buffers; see ReceiverMemory::Create().
  uint32_t verify_threads = 1;   // With 0 the progress thread verifies.
  uint64_t chunk_bytes = kChunkBytes;  // Must equal the senders' chunk size.

  // The best value of `verify_threads` for a GPU: while one thread waits for the GPU, others have
  // work queued.
  static constexpr uint32_t kGpuVerifyThreads = 4;
};

struct ReceiverEvent {
  enum class Kind : uint8_t {
    kConnected = 1,   // Every lane of the plan works.
    kPeerFailed = 2,  // The lane to `sender` is dead.
    kReady = 3,       // The update can be received, in `buffer_index`.
    kRefused = 4,     // The update cannot be received; nothing has changed.
    kArrived = 5,     // The whole update has arrived, and every digest is right.
    // Before Commit(): a digest or a ledger entry is wrong, or a device failed. After Commit():
    // copying to the inference engine's memory failed, and nothing can be read.
    kFailed = 6,
    kShown = 7,  // The version is shown. Follows Commit().
    // Everything has arrived and verified except the routes of the senders in `lacking`, whose
    // lanes died. Call Continue() or Abort().
    kLacking = 8,
  };
  Kind kind = Kind::kConnected;
  UpdateId update;
  uint32_t sender = 0;        // In kPeerFailed.
  absl::Status status;        // In kPeerFailed, kRefused and kFailed.
  uint32_t buffer_index = 0;  // In kReady.
  BufferAddress address;      // In kReady: the buffer's current address.
  // In kReady: the version from which chunks can be completed of which only the changes come; 0 if
  // there is none.
  uint64_t base = 0;
  absl::Duration pause;                // In kShown: how long copying took.
  bool unchanged = false;              // In kShown: the bytes equal those of the previous version.
  std::vector<uint32_t> lacking = {};  // In kLacking.
  bool wrong_base = false;             // In kFailed: see ReceiverCounts::wrong_bases.
};

struct SenderAddress {
  uint32_t sender = 0;
  std::vector<std::string> lane_addresses;  // In the order of the lanes.
};

// The result of comparing the shown bytes with the digests that arrived with them.
struct Comparison {
  uint64_t version = 0;  // The version that was compared; 0 if nothing could be read.
  uint64_t bytes = 0;    // The number of bytes that were compared.
  absl::Status status;
};

// Counters since the engine was made.
struct ReceiverCounts {
  uint64_t verified_bytes = 0;
  uint64_t arrived_bytes = 0;  // Bytes that were digested or, with digests off, verified.
  uint64_t early_chunks = 0;   // Chunks that were verified while later ones arrived.
  uint64_t stragglers = 0;
  uint64_t repeats = 0;
  uint64_t renewals = 0;         // How often an abandoned buffer got fresh pages and keys.
  uint64_t completed_bytes = 0;  // Bytes of chunks of which only the changes came.
  // Updates that came out wrong and had such chunks. From the first on, whole chunks come.
  uint64_t wrong_bases = 0;
  // Shown versions whose bytes equal those of the previous version. A version without digests, or
  // of another plan than the previous version, is not compared.
  uint64_t unchanged_versions = 0;
  // Bytes of Waybill's own buffers in which updates arrive; 0 if they arrive in the inference
  // engine's memory.
  uint64_t host_buffer_bytes = 0;
  uint64_t gpu_buffer_bytes = 0;
};

class ReceiverEngine {
 public:
  using EventSink = std::function<void(const ReceiverEvent&)>;

  // `fabric` outlives the engine. See ReceiverMemory::Create() for `user_regions`. All memory is
  // allocated when this returns. `sink` is called on the progress thread, from within calls.
  static absl::StatusOr<std::unique_ptr<ReceiverEngine>> Create(
      Fabric* fabric, Manifest manifest, const std::vector<MemorySpan>& user_regions,
      const ReceiverEngineOptions& options, EventSink sink);
  virtual ~ReceiverEngine() = default;

  // Replaces the plan, and returns the lanes of the new one. Closes the lanes of the old one that
  // are not kept. An update that is still arriving is over. An update that has reported kLacking or
  // kArrived keeps waiting, and a committed update is still shown. `lanes`: the lanes to each
  // sender. kFailedPrecondition: a lane that is to be kept is dead.
  virtual absl::StatusOr<std::vector<LaneOffer>> SetPlan(RouteTable arrivals, uint64_t plan_hash,
                                                         const TermLanes& lanes) = 0;
  // Reports to `relay` which chunks have arrived and can be read. `relay` must stay valid until the
  // next SetPlan() or CloseLanes() has returned.
  virtual void RelayBy(RelayedRoutes* relay) = 0;
  // Returns the routes of the plan.
  virtual const RouteTable& arrivals() const = 0;
  // Returns the memory, by region, in which the current update arrives. Call it after kReady.
  virtual std::vector<MemorySpan> Receiving() const = 0;
  // Returns the addresses to which senders write. Call it after SetPlan().
  virtual absl::StatusOr<std::vector<BufferAddress>> Describe() = 0;

  // Connects every lane that is not kept. kConnected follows, or kPeerFailed for each sender that
  // cannot be reached.
  virtual absl::Status Connect(absl::Span<const SenderAddress> senders) = 0;

  // Prepares a buffer for an update. kReady follows once no snapshot holds the buffer and a
  // committed version is shown. kRefused follows if the update cannot be received, or from the
  // first Step() after the deadline. Neither follows if Abort(), SetPlan() or CloseLanes() comes
  // first. If senders of an earlier update may still write to the buffer, it first gets fresh
  // pages, which their writes do not reach.
  virtual void Prepare(const UpdateId& update, Digests digests, absl::Time deadline) = 0;

  // Continues update `from` under the current plan, as update `to`, keeping the bytes that arrived.
  // After kLacking, the current plan must bring the missing routes: kReady follows, and kArrived
  // once everything has arrived. The lost senders cannot write any more. After kArrived no event
  // follows. kRefused follows if there is no update `from`.
  virtual void Continue(const UpdateId& from, const UpdateId& to) = 0;
  // Closes the lanes to a lost sender. kPeerFailed follows.
  virtual void LoseSender(uint32_t sender, const absl::Status& why) = 0;

  // Commits an update after kArrived. kShown follows. Neither Abort() nor another plan can undo a
  // commit.
  virtual void Commit(const UpdateId& update) = 0;

  // Abandons the update, unless it is committed. `begun` is true if data may have landed, which
  // leaves the memory dirty in Mode::kInPlace.
  virtual void Abort(const UpdateId& update, bool begun) = 0;

  // Closes every lane. When it returns, no rank can write to this receiver. Snapshots stay valid,
  // and a committed update is still shown.
  virtual void CloseLanes() = 0;

  // Pause() releases the registrations of the inference engine's GPU memory, so that the inference
  // engine may unmap the memory. Until Resume() Waybill neither reads nor writes the memory, and
  // refuses updates. `kept` is false if the contents are lost; nothing can be read then before the
  // next version.
  //
  // kFailedPrecondition: an update is going on, or a snapshot is held.
  virtual absl::Status Pause() = 0;
  virtual void Resume(bool kept) = 0;
  // kFailedPrecondition: updates are refused, because of Pause().
  virtual absl::Status MayReceive() const = 0;

  // Handles an event of the fabric. Returns false if it does not belong to one of this engine's
  // lanes.
  virtual bool Handle(const FabricEvent& event) = 0;
  // Makes progress. Call it after events were handled, and at the deadline of the last Prepare().
  virtual void Step(absl::Time now) = 0;

  // [any thread]
  virtual absl::StatusOr<Snapshot> TakeSnapshot(absl::string_view holder) = 0;
  // Compares the shown bytes with the digests that arrived with them, and returns the version.
  // Holds a snapshot meanwhile.
  //
  // kDataLoss: names the difference. kFailedPrecondition: as for TakeSnapshot(), or the version
  // arrived without digests. kUnavailable: as for TakeSnapshot().
  absl::StatusOr<uint64_t> Verify() {
    const Comparison comparison = CompareShown({});
    if (!comparison.status.ok()) return comparison.status;
    return comparison.version;
  }
  // Like Verify(), but also returns the version and the number of compared bytes if something
  // differs. kCancelled: `stop` was requested.
  virtual Comparison CompareShown(const std::stop_token& stop) = 0;
  // Returns whether a shown region lies in host or in GPU memory.
  virtual MemoryKind shown_kind(uint32_t region) const = 0;
  virtual uint64_t shown_version() const = 0;
  virtual bool dirty() const = 0;

  virtual ReceiverCounts counts() const = 0;
  // Returns the stages of the update that was shown last.
  virtual StageSpans stages() const = 0;
  // Describes how each sender is reached, for people.
  virtual std::vector<LaneReport> ReportLanes() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_RECEIVER_ENGINE_H_
