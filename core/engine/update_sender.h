// SPDX-License-Identifier: Apache-2.0

// Executes the send schedule of an update: stages, stores and posts chunks, and trades maxima with
// other senders meanwhile.
#ifndef WAYBILL_CORE_ENGINE_UPDATE_SENDER_H_
#define WAYBILL_CORE_ENGINE_UPDATE_SENDER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "core/engine/maxima_exchange.h"
#include "core/engine/receiver_link.h"
#include "core/engine/shared_chunks.h"
#include "core/engine/staged_routes.h"
#include "core/engine/staging_area.h"
#include "core/engine/staging_slots.h"
#include "core/engine/timeline.h"
#include "core/fabric/fabric.h"
#include "core/memory/staging_ring.h"
#include "core/protocol/send_schedule.h"
#include "core/protocol/update.h"
#include "core/stage/work_pool.h"

namespace waybill {

// Lives on the progress thread; the area's threads stage. Allocates nothing during an update.
class UpdateSender {
 public:
  enum class Result : uint8_t {
    kSent,     // All writes are complete, except those to failed receivers.
    kStopped,  // After Stop(): no write of the update is outstanding.
    // The update must not be shown: `why` is the device's error, or OK if NaNs or infinities were
    // found. Call Stop().
    kRefused,
  };
  using ResultSink = std::function<void(Result result, absl::Status why)>;
  using FailureSink = std::function<void(const ReceiverLink& link, absl::Status status)>;

  // The fabric, the area, the links and the exchange must outlive the sender, which calls both
  // sinks from within its own functions.
  UpdateSender(Fabric* fabric, StagingArea* area, ReceiverLinks* links, MaximaExchange* exchange,
               ResultSink ended, FailureSink failed);
  ~UpdateSender();
  UpdateSender(const UpdateSender&) = delete;
  UpdateSender& operator=(const UpdateSender&) = delete;

  const StagingRing& ring() const { return slots_.ring(); }
  // Lets the lane's network read the memory from which chunks are posted.
  absl::Status Grant(ReceiverLane& lane);

  // Drops the plan and the current update, without a result. No thread stages anything when this
  // returns. Close every lane that is not quiescent before the next plan: the slots are free again.
  void Reset();
  // Sets the plan. The links are made from its routes, and must outlive it.
  //
  // kResourceExhausted: out of memory for the ledgers.
  absl::Status SetRoutes(std::unique_ptr<StagedRoutes> staged);
  // Finds the chunks that several receivers want alike, and reserves memory for them. If that
  // fails, they are packed for each receiver, and the lanes say why. Call it when the lanes are
  // connected.
  void ShareChunks();
  StagedRoutes& routes() { return *staged_; }
  const StagedRoutes& routes() const { return *staged_; }

  // Returns true if no write to the receiver is outstanding.
  bool IsQuiescent(const ReceiverLink& link) const {
    return schedule_.posts_outstanding(link.index) == 0;
  }

  // Sets whether chunks and digests of the next update arrive by Release() and GiveDigest(). From
  // now on these may be called.
  void Expect(SourcesAre sources);
  void Release(uint32_t chunk);
  void GiveDigest(uint32_t route, uint64_t digest);

  // Begins to send to every receiver that takes part. The routes and the exchange have begun the
  // update.
  void Begin(const UpdateId& update, FinishRule finish);
  // Makes progress.
  void Step();
  // Ends the update; kStopped follows. No thread stages anything when this returns.
  void Stop();

  // Fails a receiver because one of its lanes is dead. Its other lanes are closed before the
  // failure is reported, unless a thread still stores or stages for the receiver.
  void Fail(ReceiverLink& link, absl::Status status);
  // Fails every receiver that has posts outstanding.
  void FailBusyReceivers(const absl::Status& status);
  // Handles the completion of a post with a token that is not the caller's own.
  void OnComplete(const ReceiverLink& link, ReceiverLane& lane, uint64_t token);

  TransferCounts counts() const;
  const Timeline& timeline() const { return timeline_; }

 private:
  enum class State : uint8_t { kIdle, kSending, kStopping };

  void DescribeUpdate();
  void ReleaseLedgers();
  void Trade();
  void Run();
  void ReportProgress();
  ReceiverLink& LinkOf(const SendCommand& command) { return links_.links[command.lane.peer]; }
  ReceiverLane& LaneOf(const SendCommand& command) {
    return LinkOf(command).lanes[command.lane.index];
  }
  void Execute(const SendCommand& command);
  void BeginStore(const SendCommand& command);
  bool RunStores();
  void Store(uint32_t place);
  void AnnounceStores();
  bool TakesShared(const ReceiverLink& link, uint32_t chunk);
  StagedRoutes::Reads ReadsOf(uint32_t chunk) const;
  void Stage(absl::Span<const ChunkInSlot> chunks);
  bool SendsUndigested(uint32_t chunk) const;
  void BeginDigests();
  void DigestGroup(uint32_t group);
  uint64_t BytesToPost(uint32_t chunk) const;
  std::optional<uint32_t> Announcement(const ReceiverLink& link, uint32_t chunk) const;
  void PostChunk(const SendCommand& command);
  bool Post(const SendCommand& command, std::optional<uint32_t> immediate, uint64_t token);
  void StoreLedger(ReceiverLink& link);
  void AppendLedgerWrites(ReceiverLink& link);
  void EndLane(const SendCommand& command);
  uint32_t DataImmediate() const;
  void Close(ReceiverLink& link);
  void Refuse(absl::Status why);
  void End(Result result);
  void StopStaging();

  Fabric& fabric_;
  ReceiverLinks& links_;
  MaximaExchange& exchange_;
  const ResultSink ended_;
  const FailureSink failed_;

  StagingArea& area_;
  WorkPool& pool_;

  std::unique_ptr<StagedRoutes> staged_;
  SendSchedule schedule_;
  State state_ = State::kIdle;
  UpdateId update_;
  bool refused_ = false;                    // kRefused was reported.
  std::atomic<bool> maxima_known_ = false;  // This sender has computed its own maxima.
  bool scales_known_ = false;               // All senders' maxima have arrived.
  TransferCounts counts_;                   // The counts that the schedule does not keep.
  Timeline timeline_;
  std::vector<Payload> payloads_;  // The current update's, like `parts_`.
  std::vector<TakesPart> parts_;
  SourcesAre sources_are_ = SourcesAre::kThere;
  std::vector<bool> released_;      // By chunk.
  std::vector<bool> changes_only_;  // By chunk: what changed is posted, if that is shorter.
  // The chunks to store, in order. The pool stores them in waves: a wave is all chunks that were
  // queued while the last wave was running.
  std::vector<uint32_t> stores_;
  uint32_t wave_begin_ = 0;  // In `stores_`.
  uint32_t wave_end_ = 0;
  std::atomic<bool> wave_is_over_ = true;
  std::unique_ptr<std::atomic<bool>[]> stored_;  // By index in `stores_`: true once stored.
  uint32_t announced_ = 0;  // One past the last announced chunk, as an index in `stores_`.
  std::vector<uint32_t> digested_apart_;  // Chunks.
  bool digests_begun_ = false;
  StagingSlots slots_;
  ChunkSharing sharing_;
  std::vector<Write> writes_;
  Region ledgers_;  // In host memory: the entries of all routes, as they are posted.
  WorkPool::Batch early_batch_;
  WorkPool::Batch store_batch_;
  WorkPool::Batch digest_batch_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_UPDATE_SENDER_H_
