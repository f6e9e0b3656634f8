// SPDX-License-Identifier: Apache-2.0

// The sending side of a group's updates: stages a sender's routes and sends them to their
// receivers.
//
// The engine takes commands and reports events. It does not talk to the controller. All calls come
// from one thread, the progress thread, which hands on the fabric's events and calls Step(). No
// call blocks.
#ifndef WAYBILL_CORE_ENGINE_SENDER_ENGINE_H_
#define WAYBILL_CORE_ENGINE_SENDER_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/rank_id.h"
#include "core/engine/maxima_exchange.h"
#include "core/engine/staging_area.h"
#include "core/engine/timeline.h"
#include "core/fabric/fabric.h"
#include "core/plan/plan_codec.h"
#include "core/protocol/update.h"
#include "core/stage/stage_piece.h"

namespace waybill {

struct SenderEvent {
  enum class Kind : uint8_t {
    kConnected = 1,  // Every lane of the plan works.
    // The lane to `peer` is dead. Sending to other receivers continues. A peer that is a sender
    // owns parts of blocks that this sender quantises: chunks that need its maxima are not sent.
    kPeerFailed = 2,
    kSent = 3,  // All writes are complete, except those to failed peers. The tensors may change.
    // No write of the update can land any more. Follows Abort(), and also StopNow() and SetPlan()
    // if an update was going on.
    kStopped = 4,
    // The update must not be shown. `status` is the device's error, or OK if the quantised elements
    // include NaNs or infinities and Start() was called with kRefused. Call Abort().
    kRefused = 5,
  };
  Kind kind = Kind::kConnected;
  UpdateId update;        // In kSent, kStopped and kRefused.
  RankId peer;            // In kPeerFailed.
  absl::Status status;    // In kPeerFailed and kRefused.
  TransferCounts counts;  // In kSent.
};

// What happens to an update whose quantised elements include NaNs or infinities.
enum class NonFiniteRule : uint8_t { kKept, kRefused };

// The addresses that a sender needs to reach one receiver.
struct ReceiverAddress {
  uint32_t receiver = 0;
  std::vector<std::string> lane_addresses;  // In the order of the lanes.
  std::vector<BufferAddress> buffers;
};

// The addresses that other ranks need to reach a sender.
struct SenderOffers {
  std::vector<LaneOffer> lanes;      // To receivers.
  std::vector<LaneOffer> co_owners;  // To senders that share blocks with this one.
  std::string mailbox;               // Where the co-owners write; empty if there are none.
};

// One receiver's part in the start of an update.
struct StartTarget {
  uint32_t receiver = 0;
  uint32_t buffer_index = 0;
  uint32_t generation = 0;  // The buffer's generation that the receiver offered for this update.
  uint64_t base = 0;        // The version that the receiver has besides; 0: none.
};

class SenderEngine {
 public:
  using EventSink = std::function<void(const SenderEvent&)>;

  // Creates an engine. The fabric and the area outlive it; the area may be shared by the engines of
  // other groups. `sink` is called on the progress thread, from within the engine's calls.
  static std::unique_ptr<SenderEngine> Create(Fabric* fabric, StagingArea* area, EventSink sink);
  // Closes every lane.
  virtual ~SenderEngine() = default;

  // Replaces the plan, and returns the lanes of the new one. Closes the lanes of the old one that
  // are not kept.
  //
  //   sources   The memory of each region of the sender's manifest. It must stay valid until the
  //             next plan, and unchanged from Start() to the event that ends the update.
  //   lanes     The lanes to each receiver.
  //
  // kInvalidArgument: the plan is inconsistent, or the sources are on several devices.
  // kFailedPrecondition: a lane that is to be kept is dead, or had writes outstanding.
  virtual absl::StatusOr<SenderOffers> SetPlan(RankPlan plan, std::vector<MemorySpan> sources,
                                               const TermLanes& lanes) = 0;

  // Connects every lane that is not kept. kConnected follows, or kPeerFailed for each peer that
  // cannot be reached.
  virtual absl::Status Connect(absl::Span<const ReceiverAddress> receivers,
                               absl::Span<const CoOwnerAddress> co_owners = {}) = 0;

  // Sets the address of a receiver's buffer. The buffer is imported on every lane before the next
  // update that goes to it. Call it at any time after Connect(), repeatedly if need be. An address
  // of an earlier generation than the known one is ignored. kInvalidArgument: there is no such
  // receiver or buffer, or the address has another number of regions.
  virtual absl::Status SetBufferAddress(uint32_t receiver, uint32_t buffer_index,
                                        BufferAddress address) = 0;

  // Starts to send to the targets, and to trade maxima with co-owners. `targets` is empty if other
  // senders only need this sender's maxima. CutIntoChunks() of the plan's routes numbers the
  // chunks, which can be released from now on. Only what changed since `before` is posted to the
  // targets that have it, chunk by chunk, where that is shorter (chunk_changes.h); the memory of
  // `before` is read as long as that of the sources. kSent follows, or kStopped after an abort.
  // kFailedPrecondition: not connected, an update is going on, or the known address of a target is
  // of another generation.
  virtual absl::Status Start(const UpdateId& update, Digests digests,
                             absl::Span<const StartTarget> targets,
                             NonFiniteRule rule = NonFiniteRule::kKept,
                             SourcesAre sources = SourcesAre::kThere,
                             const VersionsInMemory& versions = {}) = 0;
  // Marks a chunk's bytes as present, in an update with kArriving. Call Step() afterwards. Sending
  // to a receiver ends once all its chunks are released and all its routes' digests are given.
  virtual void Release(uint32_t chunk) = 0;
  // Sets the digest of a route, once for each update with kArriving.
  virtual void GiveDigest(uint32_t route, uint64_t digest) = 0;

  // Replaces the memory of the manifest's regions by unregistered memory. Call it between two
  // updates. kInvalidArgument: the memory is on several devices; kInternal: the device failed.
  virtual absl::Status SetSources(std::vector<MemorySpan> sources) = 0;

  // Abandons the update. kStopped follows once no write of the update is outstanding, and at once
  // if the update is unknown or over. A second call while the first is pending has no effect.
  virtual void Abort(uint32_t sequence) = 0;

  // Abandons the update at once and closes the lanes that have writes outstanding. When it returns,
  // the engine reads no source, and none of its writes can land.
  virtual void StopNow() = 0;

  // Handles an event of the fabric. Returns false if it does not belong to one of this engine's
  // lanes.
  virtual bool Handle(const FabricEvent& event) = 0;
  // Makes progress. Call it after events were handled, and whenever slots of the area became free.
  virtual void Step() = 0;

  // Returns the current update's counts so far.
  virtual TransferCounts counts() const = 0;
  // Returns the timeline of the update that was sent last.
  virtual const Timeline& timeline() const = 0;
  // Returns the shards of the manifest in which the last update found NaNs or infinities while it
  // quantised them.
  virtual std::vector<NonFinite> FindNonFinite() const = 0;
  // Describes how each peer is reached, for people.
  virtual std::vector<LaneReport> ReportLanes() const = 0;
  // Returns how fast the lanes carried the update that was sent last.
  virtual std::vector<LaneRate> LaneRates() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_SENDER_ENGINE_H_
