// SPDX-License-Identifier: Apache-2.0

#include "testing/fault_drills/party.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/status.h"
#include "core/base/steady_now.h"

namespace waybill::drills {
namespace {

constexpr uint64_t kPage = 4096;
constexpr std::byte kAround{0xA5};

// Below 0x80, so that what is above is no byte of a stream.
std::byte ByteOf(uint32_t slot, uint64_t i) {
  return static_cast<std::byte>((i * 37 + (i >> 7) + slot * 11 + 5) & 0x7F);
}

}  // namespace

// Its lanes read and write memory that goes first otherwise.
Party::~Party() { fabric_.reset(); }

void Party::Turn() {
  std::vector<FabricEvent> events;  // Without room of its own it takes all that has happened.
  fabric_->Poll(events);
  for (const FabricEvent& event : events) Take(event);
  for (const FabricEvent& event : events) {
    if (event.kind != FabricEvent::Kind::kImmediate) continue;
    CheckBytes(lanes_[event.lane], event.immediate);
  }
  for (auto& [id, lane] : lanes_) Pump(id, lane);
}

void Party::Wait(absl::Duration most) { fabric_->Wait(SteadyNow() + most); }

void Party::Take(const FabricEvent& event) {
  Lane& lane = lanes_[event.lane];
  switch (event.kind) {
    case FabricEvent::Kind::kConnected:
      ++lane.state.connected;
      return;
    case FabricEvent::Kind::kComplete:
      // In order, and each once.
      if (event.token != lane.state.complete) ++lane.state.wrong;
      ++lane.state.complete;
      return;
    case FabricEvent::Kind::kImmediate:
      if (event.immediate != lane.state.immediates) ++lane.state.wrong;
      ++lane.state.immediates;
      return;
    case FabricEvent::Kind::kFailed:
      ++lane.state.failed;
      return;
  }
}

void Party::CheckBytes(Lane& lane, uint64_t k) {
  const auto memory = memories_.find(lane.inbox);
  if (memory == memories_.end()) return;
  // A lane that failed may have left the write after the last reported one in part. Its slot may be
  // that of an earlier write that was polled together with the failure.
  const uint32_t slots = memory->second->shape.slots;
  if (lane.state.failed > 0 && k % slots == lane.state.immediates % slots) return;
  if (!Holds(*memory->second, k)) ++lane.state.wrong;
}

bool Party::Holds(const Memory& memory, uint64_t k) const {
  const uint32_t slot = static_cast<uint32_t>(k % memory.shape.slots);
  const std::byte* bytes = memory.region.data + uint64_t{slot} * memory.shape.write_bytes;
  for (uint64_t i = 0; i < memory.shape.write_bytes; ++i) {
    if (bytes[i] != ByteOf(slot, i)) return false;
  }
  return true;
}

void Party::Pump(LaneId id, Lane& lane) {
  if (lane.stream == nullptr || lane.closed) return;
  Stream& stream = *lane.stream;
  LaneState& state = lane.state;
  if (stream.remote == RemoteRegionId::kNone) {
    const absl::StatusOr<RemoteRegionId> remote = fabric_->Import(id, stream.descriptor);
    if (!remote.ok()) return;  // Its grant is on the way.
    stream.remote = *remote;
  }
  while (state.failed == 0 && state.refused == 0 &&
         state.posted - state.complete < stream.shape.slots &&
         (stream.shape.count == 0 || state.posted < stream.shape.count)) {
    const uint64_t offset = state.posted % stream.shape.slots * uint64_t{stream.shape.write_bytes};
    const Write write{stream.source.id, offset, stream.remote, offset, stream.shape.write_bytes};
    const absl::Status status = fabric_->Post(id, absl::MakeConstSpan(&write, 1),
                                              static_cast<uint32_t>(state.posted), state.posted);
    if (absl::IsResourceExhausted(status)) return;
    if (status.ok()) {
      ++state.posted;
    } else {
      ++state.refused;
    }
  }
}

absl::Status Party::Close(LaneId lane) {
  lanes_[lane].closed = true;
  return fabric_->CloseLane(lane);
}

absl::StatusOr<Destination> Party::Receive(LaneId lane, const Shape& shape) {
  auto memory = std::make_unique<Memory>();
  memory->shape = shape;
  memory->bytes.assign(shape.size_bytes() + 2 * kPage, kAround);
  memory->region = {MemoryKind::kHost, memory->bytes.data() + kPage, shape.size_bytes()};
  std::memset(memory->region.data, 0xFF, shape.size_bytes());
  WAYBILL_ASSIGN_OR_RETURN(const Region region, fabric_->Register(memory->region, "destination"));
  memories_[region.id] = std::move(memory);
  lanes_[lane].inbox = region.id;
  return GrantAgain(lane, region.id);
}

absl::StatusOr<Destination> Party::GrantAgain(LaneId lane, RegionId region) {
  WAYBILL_RETURN_IF_ERROR(fabric_->Grant(lane, region));
  WAYBILL_ASSIGN_OR_RETURN(std::string descriptor, fabric_->Describe(region));
  return Destination{region, std::move(descriptor)};
}

void Party::Fill(RegionId region, std::byte value) {
  const MemorySpan& memory = memories_.at(region)->region;
  std::memset(memory.data, static_cast<int>(value), memory.size_bytes);
}

uint64_t Party::CountOf(RegionId region, std::byte value) const {
  const MemorySpan& memory = memories_.at(region)->region;
  return static_cast<uint64_t>(std::count(memory.data, memory.data + memory.size_bytes, value));
}

bool Party::SurroundingsAreIntact(RegionId region) const {
  const std::vector<std::byte>& bytes = memories_.at(region)->bytes;
  return std::count(bytes.begin(), bytes.begin() + kPage, kAround) == kPage &&
         std::count(bytes.end() - kPage, bytes.end(), kAround) == kPage;
}

absl::Status Party::Send(LaneId lane, const std::string& descriptor, const Shape& shape) {
  WAYBILL_ASSIGN_OR_RETURN(const Region source, fabric_->Allocate(shape.size_bytes(), "source"));
  WAYBILL_RETURN_IF_ERROR(fabric_->Grant(lane, source.id));
  for (uint32_t slot = 0; slot < shape.slots; ++slot) {
    std::byte* bytes = source.memory.data + uint64_t{slot} * shape.write_bytes;
    for (uint64_t i = 0; i < shape.write_bytes; ++i) bytes[i] = ByteOf(slot, i);
  }
  lanes_[lane].stream =
      std::make_unique<Stream>(Stream{.shape = shape, .descriptor = descriptor, .source = source});
  return absl::OkStatus();
}

void Party::PoisonSource(LaneId lane) {
  const MemorySpan& memory = lanes_.at(lane).stream->source.memory;
  std::memset(memory.data, static_cast<int>(kPoison), memory.size_bytes);
}

}  // namespace waybill::drills
