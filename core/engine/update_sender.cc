// SPDX-License-Identifier: Apache-2.0

#include "core/engine/update_sender.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"
#include "core/base/steady_now.h"

namespace waybill {
namespace {

// The token of a post without a slot. A post from a slot has the slot's number.
constexpr uint64_t kNoSlotToken = ~uint64_t{0} - 1;

// The number of chunks that are stored before the progress thread is woken to announce them. A
// larger number delays a receiver's verification a little, but the progress thread takes a core
// from the storing threads less often.
constexpr uint32_t kStoresPerWake = 8;

}  // namespace

UpdateSender::UpdateSender(Fabric* fabric, StagingArea* area, ReceiverLinks* links,
                           MaximaExchange* exchange, ResultSink ended, FailureSink failed)
    : fabric_(*fabric),
      links_(*links),
      exchange_(*exchange),
      ended_(std::move(ended)),
      failed_(std::move(failed)),
      area_(*area),
      pool_(area->threads()),
      schedule_(&area->slots()),
      slots_(fabric, area->ring(), &pool_,
             [this](absl::Span<const ChunkInSlot> chunks) { Stage(chunks); }),
      sharing_(
          fabric, &area->shared_chunks(), &pool_,
          [this](uint32_t chunk, Packed as, absl::Span<std::byte> memory, PackedChunk& result) {
            staged_->PackShared(chunk, as, memory, result);
            timeline_.End(Stage::kStage);
          }),
      early_batch_(
          [this](uint32_t i) {
            timeline_.Charge(Timeline::Work::kMaxima, [&] { staged_->RunEarlyTask(i); });
          },
          [this] {
            maxima_known_.store(true, std::memory_order_release);
            fabric_.Wake();
          }),
      store_batch_([this](uint32_t i) { Store(wave_begin_ + i); },
                   [this] {
                     wave_is_over_.store(true, std::memory_order_release);
                     fabric_.Wake();
                   }),
      digest_batch_([this](uint32_t group) { DigestGroup(group); }, [] {}) {}

UpdateSender::~UpdateSender() {
  StopStaging();
  staged_.reset();  // Refers to the slots.
  ReleaseLedgers();
}

void UpdateSender::ReleaseLedgers() {
  if (ledgers_.id != RegionId::kNone) (void)fabric_.Release(ledgers_.id);
  ledgers_ = {};
}

absl::Status UpdateSender::Grant(ReceiverLane& lane) {
  const absl::Status readable = staged_->CheckRead(fabric_, lane.id);
  lane.reads_sources = readable.ok();
  lane.reads_device_slots = staged_->ReadsDeviceSlots(fabric_, lane.id);
  lane.copies_posts = fabric_.CopiesPosts(lane.id);
  lane.why_host_slots = area_.why_no_device_slots();
  lane.why_staged = readable.ok() ? area_.why_staged() : std::string(readable.message());
  WAYBILL_RETURN_IF_ERROR(fabric_.Grant(lane.id, ring().region()));
  return fabric_.Grant(lane.id, ledgers_.id);
}

void UpdateSender::Reset() {
  StopStaging();
  schedule_.SetPeers({}, 0);
  sharing_.Reset();
  state_ = State::kIdle;
  staged_.reset();  // Frees its device memory for the next plan.
}

absl::Status UpdateSender::SetRoutes(std::unique_ptr<StagedRoutes> staged) {
  staged_ = std::move(staged);
  ReleaseLedgers();
  const uint64_t ledger_bytes = staged_->routes().size() * sizeof(LedgerEntry);
  if (ledger_bytes > 0) {
    WAYBILL_ASSIGN_OR_RETURN(ledgers_, fabric_.Allocate(ledger_bytes, "ledgers to be sent"));
  }
  // Reserve all memory that an update needs, so that updates allocate nothing.
  writes_.reserve(std::max<size_t>(staged_->most_writes(),
                                   ledger_bytes / fabric_.capabilities().max_write_bytes + 1));
  stores_.reserve(staged_->chunk_count());
  stored_ = std::make_unique<std::atomic<bool>[]>(staged_->chunk_count());
  released_.assign(staged_->chunk_count(), false);
  changes_only_.assign(staged_->chunk_count(), false);
  sharing_.SetPlan(staged_->chunk_count());
  payloads_.reserve(staged_->chunk_count());
  digested_apart_.reserve(staged_->chunk_count());
  parts_.reserve(links_.links.size());
  std::vector<uint32_t> lane_counts;
  lane_counts.reserve(links_.links.size());
  for (const ReceiverLink& link : links_.links) {
    lane_counts.push_back(static_cast<uint32_t>(link.lanes.size()));
  }
  // A GPU copies a whole batch of chunks in one round trip, while another batch waits.
  schedule_.SetPeers(lane_counts, staged_->chunk_count(),
                     std::max(SendSchedule::kMostDirectPosts, 2 * staged_->at_once()));
  return absl::OkStatus();
}

void UpdateSender::ShareChunks() {
  if (!area_.options().has_images()) return;
  for (uint32_t c = 0; c < staged_->chunk_count(); ++c) {
    if (links_.link_of_chunk[c]->lanes[links_.lane_of_chunk[c]].mapped()) continue;
    const std::string content = staged_->ContentToShare(c);
    if (content.empty()) continue;
    sharing_.Share(c, content, staged_->chunk_size(c), staged_->chunk(c).piece_count);
  }
  const absl::Status reserved = area_.shared_chunks().Reserve();
  for (ReceiverLink& link : links_.links) {
    for (ReceiverLane& lane : link.lanes) lane.why_not_shared = std::string(reserved.message());
  }
}

void UpdateSender::Begin(const UpdateId& update, FinishRule finish) {
  update_ = update;
  counts_ = {};
  timeline_.Clear();
  if (staged_->early_task_count() > 0) timeline_.Begin(Stage::kExchange);
  refused_ = scales_known_ = false;
  maxima_known_.store(false, std::memory_order_relaxed);
  stores_.clear();
  wave_begin_ = wave_end_ = announced_ = 0;
  for (ReceiverLink& link : links_.links) {
    for (ReceiverLane& lane : link.lanes) lane.BeginUpdate();
  }
  pool_.Run(early_batch_, staged_->early_task_count());
  // Stage only a part of the slots at a time, so that the network can send from the others.
  slots_.set_at_once(std::min(staged_->at_once(), std::max(ring().slot_count() / 4, 1u)));
  sharing_.Begin();
  DescribeUpdate();
  schedule_.Begin(payloads_, parts_, finish);
  digests_begun_ = digested_apart_.empty();
  state_ = State::kSending;
}

void UpdateSender::Expect(SourcesAre sources) {
  sources_are_ = sources;
  std::fill(released_.begin(), released_.end(), false);
  for (ReceiverLink& link : links_.links) {
    link.digests_left = sources == SourcesAre::kArriving ? link.route_count() : 0;
  }
}

void UpdateSender::Release(uint32_t chunk) {
  released_[chunk] = true;
  if (state_ == State::kSending) schedule_.Release(chunk);
}

void UpdateSender::GiveDigest(uint32_t route, uint64_t digest) {
  staged_->GiveDigest(route, digest);
  const auto link =
      std::upper_bound(links_.links.begin(), links_.links.end(), route,
                       [](uint32_t r, const ReceiverLink& link) { return r < link.last_route; });
  link->digests_left.fetch_sub(1, std::memory_order_relaxed);
}

void UpdateSender::Step() {
  if (state_ == State::kIdle) return;
  if (state_ == State::kSending && !scales_known_) Trade();
  schedule_.Retry([this](SendLane lane) {
    return fabric_.HasRoom(links_.links[lane.peer].lanes[lane.index].id);
  });
  Run();
  // After the work for which the network waits.
  if (state_ == State::kSending && !std::exchange(digests_begun_, true)) BeginDigests();
}

void UpdateSender::Stop() {
  StopStaging();
  schedule_.Abort();
  state_ = State::kStopping;
}

// Lists the payloads of this update for each receiver.
void UpdateSender::DescribeUpdate() {
  payloads_.clear();
  parts_.clear();
  digested_apart_.clear();
  for (ReceiverLink& link : links_.links) {
    parts_.push_back(link.takes_part() ? TakesPart::kYes : TakesPart::kNo);
    if (!link.takes_part()) continue;
    for (uint32_t c = link.first_chunk; c < link.last_chunk; ++c) {
      const uint32_t lane = links_.lane_of_chunk[c];
      Payload payload = {
          .id = c,
          .lane = {link.index, lane},
          .size_bytes = staged_->chunk_size(c),
          .held = staged_->waits(c) || (sources_are_ == SourcesAre::kArriving && !released_[c])};
      const bool mapped = staged_->IsMapped(c, link.buffer(lane));
      changes_only_[c] =
          link.has_before && !mapped && staged_->CanStageChanges(c) && Announcement(link, c);
      if (mapped) {
        payload.way = SendWay::kStored;
      } else if (staged_->staged_bytes(c, ReadsOf(c)) > 0 && TakesShared(link, c)) {
        payload.way = SendWay::kDirect;
        payload.held = true;
      } else {
        const uint64_t staged_bytes = staged_->staged_bytes(c, ReadsOf(c));
        payload.way = staged_bytes > 0 ? SendWay::kStaged : SendWay::kDirect;
        payload.digested_apart = SendsUndigested(c) && !link.lanes[lane].copies_posts;
      }
      if (payload.way != SendWay::kDirect || sharing_.taken(c)) timeline_.Begin(Stage::kStage);
      if (sources_are_ == SourcesAre::kArriving) {
        payload.digested_apart = staged_->digests() == Digests::kOn;
      } else if (payload.digested_apart) {
        digested_apart_.push_back(c);
      }
      payloads_.push_back(payload);
    }
  }
}

// Returns true if the chunk is posted from the memory that receivers share.
bool UpdateSender::TakesShared(const ReceiverLink& link, uint32_t chunk) {
  if (sources_are_ != SourcesAre::kThere) return false;
  Packed as = staged_->digests() == Digests::kOn ? Packed::kWhole : Packed::kUndigested;
  if (changes_only_[chunk]) as = Packed::kChanges;
  ReceiverLane& lane = links_.links[link.index].lanes[links_.lane_of_chunk[chunk]];
  return area_.shared_chunks().GrantTo(lane.id, lane.shared_granted).ok() &&
         sharing_.Take(chunk, as);
}

StagedRoutes::Reads UpdateSender::ReadsOf(uint32_t chunk) const {
  if (changes_only_[chunk] || sharing_.taken(chunk)) return {};
  const ReceiverLane& lane = links_.link_of_chunk[chunk]->lanes[links_.lane_of_chunk[chunk]];
  return {.sources = lane.reads_sources && staged_->sources_are_registered(),
          .device_slots = lane.reads_device_slots};
}

// Returns true if the chunk is posted with direct bytes that were not digested yet.
bool UpdateSender::SendsUndigested(uint32_t chunk) const {
  return staged_->digests() == Digests::kOn && sources_are_ == SourcesAre::kThere &&
         staged_->staged_bytes(chunk, ReadsOf(chunk)) < staged_->chunk_size(chunk);
}

// On any thread.
void UpdateSender::Stage(absl::Span<const ChunkInSlot> chunks) {
  const auto reads = [this](uint32_t chunk) { return ReadsOf(chunk); };
  const auto changes_only = [this](const ChunkInSlot& c) { return changes_only_[c.chunk]; };
  if (std::none_of(chunks.begin(), chunks.end(), changes_only)) {
    staged_->StagePacked(chunks, reads);
  } else {
    for (const ChunkInSlot& chunk : chunks) {
      changes_only(chunk) ? staged_->StageChanges(chunk) : staged_->StagePacked({&chunk, 1}, reads);
    }
  }
  timeline_.End(Stage::kStage);
}

// Computes the digests of direct routes while the network sends.
void UpdateSender::BeginDigests() {
  for (const uint32_t chunk : digested_apart_) {
    links_.link_of_chunk[chunk]->digests_left.fetch_add(1, std::memory_order_relaxed);
  }
  const auto count = static_cast<uint32_t>(digested_apart_.size());
  pool_.RunLast(digest_batch_, (count + staged_->at_once() - 1) / staged_->at_once());
}

// On any thread.
void UpdateSender::DigestGroup(uint32_t group) {
  const uint32_t at_once = staged_->at_once();
  const auto chunks = absl::MakeConstSpan(digested_apart_).subspan(group * at_once, at_once);
  staged_->DigestDirect(chunks);
  for (const uint32_t chunk : chunks) {
    ReceiverLink& link = *links_.link_of_chunk[chunk];
    if (link.digests_left.fetch_sub(1, std::memory_order_acq_rel) == 1) fabric_.Wake();
  }
}

// Trades maxima with the co-owners. Chunks that need no maxima are staged meanwhile.
void UpdateSender::Trade() {
  if (!maxima_known_.load(std::memory_order_acquire)) return;
  timeline_.Charge(Timeline::Work::kTrade, [this] { exchange_.Step(counts_); });
  if (!exchange_.all_come()) return;
  scales_known_ = true;
  timeline_.Charge(Timeline::Work::kTrade, [this] { staged_->FinishEarly(); });
  schedule_.OnScalesKnown();
  for (uint32_t c = 0; c < staged_->chunk_count(); ++c) {
    if (staged_->waits(c)) schedule_.Release(c);
  }
  timeline_.End(Stage::kExchange);
}

// Reports events to the schedule and executes its commands until none is left.
void UpdateSender::Run() {
  SendCommand command;
  for (bool more = true; more;) {
    more = false;
    ReportProgress();
    for (; schedule_.Next(command); more = true) Execute(command);
    more = RunStores() || more;
    more = sharing_.BeginPacking() || more;
    more = slots_.Begin() || more;
  }
}

void UpdateSender::ReportProgress() {
  AnnounceStores();
  for (ReceiverLink& link : links_.links) {
    if (link.stores_begun == 0 || link.stores_left.load(std::memory_order_acquire) > 0) continue;
    schedule_.OnStored(link.index, std::exchange(link.stores_begun, 0));
  }
  if (digests_begun_ && (!digested_apart_.empty() || sources_are_ == SourcesAre::kArriving)) {
    for (const ReceiverLink& link : links_.links) {
      if (link.digests_left.load(std::memory_order_acquire) == 0) schedule_.OnDigested(link.index);
    }
  }
  slots_.ForEachWritten([this](uint32_t slot) { schedule_.OnStaged(slot); });
  sharing_.ForEachPacked([this](uint32_t chunk, bool own) {
    const SharedChunk& shared = sharing_.of(chunk);
    staged_->TakePacked(chunk, shared.result);
    if (own) counts_.staged_bytes += shared.size_bytes;
    schedule_.Release(chunk);
  });
  // An update that a device failed to stage must not be finished.
  if (state_ == State::kSending && !refused_) {
    if (absl::Status status = staged_->status(); !status.ok()) Refuse(std::move(status));
  }
  const bool trade_over = state_ == State::kStopping || scales_known_;
  if (trade_over && exchange_.posts_outstanding() == 0) schedule_.OnTradeQuiet();
}

void UpdateSender::Execute(const SendCommand& command) {
  using Kind = SendCommand::Kind;
  switch (command.kind) {
    case Kind::kStore:
      return BeginStore(command);
    case Kind::kStage:
      return slots_.Stage(command.slot, command.payload);
    case Kind::kPost:
      return PostChunk(command);
    case Kind::kEndLane:
      return EndLane(command);
    case Kind::kClose:
      return Close(LinkOf(command));
    case Kind::kPeerDone:
      return;
    case Kind::kCheck:
      // No receiver shows the update without the last immediates.
      if (staged_->FindNonFinite().empty()) return schedule_.AllowFinish();
      return Refuse(absl::OkStatus());
    case Kind::kSent:
      timeline_.EndWait();
      return End(Result::kSent);
    case Kind::kQuiet:
      return End(Result::kStopped);
  }
}

void UpdateSender::BeginStore(const SendCommand& command) {
  ++LinkOf(command).stores_begun;
  LinkOf(command).stores_left.fetch_add(1, std::memory_order_relaxed);
  stored_[stores_.size()].store(false, std::memory_order_relaxed);
  stores_.push_back(command.payload);
}

bool UpdateSender::RunStores() {
  const auto end = static_cast<uint32_t>(stores_.size());
  if (wave_end_ == end || !wave_is_over_.load(std::memory_order_acquire)) return false;
  wave_begin_ = std::exchange(wave_end_, end);
  wave_is_over_.store(false, std::memory_order_relaxed);
  pool_.Run(store_batch_, wave_end_ - wave_begin_);
  return true;
}

// On any thread.
void UpdateSender::Store(uint32_t place) {
  const uint32_t chunk = stores_[place];
  ReceiverLink& link = *links_.link_of_chunk[chunk];
  if (!link.failed.load(std::memory_order_relaxed)) {
    staged_->StageInPlace(chunk, link.buffer(links_.lane_of_chunk[chunk]));
    timeline_.End(Stage::kStage);
  }
  stored_[place].store(true, std::memory_order_release);
  const bool last = link.stores_left.fetch_sub(1, std::memory_order_acq_rel) == 1;
  if (last || place % kStoresPerWake == kStoresPerWake - 1) fabric_.Wake();
}

// Announces stored chunks, so that receivers verify them while later chunks are stored. Chunks are
// announced in the order in which they were begun, so that one counter is enough.
void UpdateSender::AnnounceStores() {
  for (; announced_ < wave_end_ && stored_[announced_].load(std::memory_order_acquire);
       ++announced_) {
    const uint32_t chunk = stores_[announced_];
    ReceiverLink& link = *links_.link_of_chunk[chunk];
    const std::optional<uint32_t> immediate = Announcement(link, chunk);
    if (link.failed || !immediate) continue;
    absl::Status status = fabric_.Signal(link.lanes[links_.lane_of_chunk[chunk]].id, *immediate);
    if (!status.ok()) Fail(link, std::move(status));
  }
}

// Returns the size of a chunk, or of its changes if only these are posted.
uint64_t UpdateSender::BytesToPost(uint32_t chunk) const {
  return changes_only_[chunk] ? staged_->bytes_to_post(chunk) : staged_->chunk_size(chunk);
}

// Returns the immediate that follows a chunk, or nullopt if the chunk is too small to announce.
std::optional<uint32_t> UpdateSender::Announcement(const ReceiverLink& link, uint32_t chunk) const {
  const uint32_t number = chunk - link.first_chunk;
  if (staged_->digests() == Digests::kOff || number >= ChunkImmediate::kMostChunks ||
      staged_->chunk_size(chunk) < area_.options().announced_bytes) {
    return std::nullopt;
  }
  const bool whole = BytesToPost(chunk) == staged_->chunk_size(chunk);
  return ChunkImmediate{update_.sequence, number}.Pack(whole ? Immediate::Kind::kChunk
                                                             : Immediate::Kind::kChanges);
}

void UpdateSender::PostChunk(const SendCommand& command) {
  if (!fabric_.HasRoom(LaneOf(command).id)) return schedule_.OnRefused(command);
  timeline_.Begin(Stage::kPost);
  writes_.clear();
  const bool direct = command.slot == SendSchedule::kNoSlot;
  const uint64_t posted_bytes = BytesToPost(command.payload);
  const StagedRoutes::Reads reads = ReadsOf(command.payload);
  Registration packed;
  if (sharing_.taken(command.payload)) {
    packed = sharing_.of(command.payload).registration;
  } else if (!direct) {
    packed = staged_->SlotOf(command.payload, reads, command.slot);
  }
  staged_->AppendWritesOf(command.payload, reads, LinkOf(command).buffer(command.lane.index),
                          packed, posted_bytes, writes_);
  const std::optional<uint32_t> immediate = Announcement(LinkOf(command), command.payload);
  if (!Post(command, immediate, direct ? kNoSlotToken : command.slot)) return;
  if (LaneOf(command).copies_posts && SendsUndigested(command.payload)) {
    staged_->DigestDirect({&command.payload, 1});  // The bytes are still in the cache.
  }
  if (!sharing_.taken(command.payload)) {
    counts_.staged_bytes += staged_->staged_bytes(command.payload, reads);
  }
  counts_.spared_bytes += staged_->chunk_size(command.payload) - posted_bytes;
  timeline_.End(Stage::kPost);
}

// Posts writes_. Returns false if the lane is full or fails.
bool UpdateSender::Post(const SendCommand& command, std::optional<uint32_t> immediate,
                        uint64_t token) {
  ReceiverLane& lane = LaneOf(command);
  const absl::Time begin = lane.posted_bytes == 0 ? SteadyNow() : lane.first_post;
  absl::Status status = fabric_.Post(lane.id, writes_, immediate, token);
  if (absl::IsResourceExhausted(status)) {
    schedule_.OnRefused(command);
  } else if (!status.ok()) {
    Fail(LinkOf(command), std::move(status));
  } else {
    schedule_.OnAccepted(command);
    counts_.writes += writes_.size();
    lane.first_post = begin;
    for (const Write& write : writes_) lane.posted_bytes += write.size_bytes;
    return true;
  }
  return false;
}

// The entries of one sender are neighbours in the ledger.
void UpdateSender::StoreLedger(ReceiverLink& link) {
  auto* entries = reinterpret_cast<LedgerEntry*>(link.buffer(0).ledger.mapped);
  staged_->FillLedger(link.first_route, link.route_count(), entries + link.first_ledger_entry);
}

void UpdateSender::AppendLedgerWrites(ReceiverLink& link) {
  auto* entries = reinterpret_cast<LedgerEntry*>(ledgers_.memory.data) + link.first_route;
  staged_->FillLedger(link.first_route, link.route_count(), entries);
  const uint64_t source = uint64_t{link.first_route} * sizeof(LedgerEntry);
  const uint64_t destination = uint64_t{link.first_ledger_entry} * sizeof(LedgerEntry);
  const uint64_t size = uint64_t{link.route_count()} * sizeof(LedgerEntry);
  const uint64_t most = fabric_.capabilities().max_write_bytes;
  for (uint64_t done = 0; done < size; done += most) {
    writes_.push_back({.source = ledgers_.id,
                       .source_offset_bytes = source + done,
                       .destination = link.buffer(0).ledger.remote,
                       .destination_offset_bytes = destination + done,
                       .size_bytes = std::min(most, size - done)});
  }
}

void UpdateSender::EndLane(const SendCommand& command) {
  ReceiverLink& link = LinkOf(command);
  const bool with_ledger = command.lane.index == 0;
  if (link.buffer(command.lane.index).ledger.mapped == nullptr) {
    writes_.clear();
    if (with_ledger) AppendLedgerWrites(link);
    (void)Post(command, DataImmediate(), kNoSlotToken);
    return;
  }
  if (with_ledger) StoreLedger(link);
  absl::Status status = fabric_.Signal(LaneOf(command).id, DataImmediate());
  if (!status.ok()) return Fail(link, std::move(status));
  schedule_.OnAccepted(command);
  schedule_.OnComplete(command.lane, SendSchedule::kNoSlot);
}

uint32_t UpdateSender::DataImmediate() const {
  return Immediate{Immediate::Kind::kData, update_.sequence}.Pack();
}

// --- the end ---

void UpdateSender::Fail(ReceiverLink& link, absl::Status status) {
  if (link.failed.exchange(true)) return;
  if (schedule_.OnPeerFailed(link.index)) Close(link);
  failed_(link, std::move(status));
}

void UpdateSender::FailBusyReceivers(const absl::Status& status) {
  for (ReceiverLink& link : links_.links) {
    if (!link.failed && schedule_.posts_outstanding(link.index) > 0) Fail(link, status);
  }
}

void UpdateSender::Close(ReceiverLink& link) {
  link.CloseLanes(fabric_);
  schedule_.OnClosed(link.index);
}

void UpdateSender::OnComplete(const ReceiverLink& link, ReceiverLane& lane, uint64_t token) {
  lane.last_completion = SteadyNow();
  const SendLane where = {link.index, static_cast<uint32_t>(&lane - link.lanes.data())};
  if (token == kNoSlotToken) {
    schedule_.OnComplete(where, SendSchedule::kNoSlot);
  } else if (token < ring().slot_count()) {
    schedule_.OnComplete(where, static_cast<uint32_t>(token));
  }
}

void UpdateSender::Refuse(absl::Status why) {
  refused_ = true;
  schedule_.RefuseFinish();
  ended_(Result::kRefused, std::move(why));
}

void UpdateSender::End(Result result) {
  // Chunks may still be packed for receivers that have failed; their threads must not read the next
  // image.
  sharing_.End();
  state_ = State::kIdle;
  ended_(result, absl::OkStatus());
}

// Stops staging. When it returns, no thread stages anything.
void UpdateSender::StopStaging() {
  pool_.Cancel(early_batch_);
  pool_.Cancel(store_batch_);
  stores_.clear();
  wave_begin_ = wave_end_ = announced_ = 0;
  wave_is_over_.store(true, std::memory_order_relaxed);
  pool_.Cancel(digest_batch_);
  digested_apart_.clear();
  slots_.Cancel();
  sharing_.End();
  for (ReceiverLink& link : links_.links) {
    link.stores_left.store(0, std::memory_order_relaxed);
    link.digests_left.store(0, std::memory_order_relaxed);
    link.stores_begun = 0;
  }
}

TransferCounts UpdateSender::counts() const {
  TransferCounts counts = counts_;
  counts.bytes = schedule_.counts().bytes;
  counts.stores = schedule_.counts().stores;
  counts.immediates = schedule_.counts().immediates;
  return counts;
}

}  // namespace waybill
