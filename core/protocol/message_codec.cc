// SPDX-License-Identifier: Apache-2.0

#include "core/protocol/message_codec.h"

#include "core/base/status.h"

namespace waybill {

proto::Error EncodeError(const absl::Status& status) {
  proto::Error error;
  error.set_code(static_cast<int>(status.code()));
  error.set_message(std::string(status.message()));
  error.set_scope(static_cast<uint32_t>(ScopeOf(status)));
  return error;
}

absl::Status DecodeError(const proto::Error& error) {
  absl::Status status(static_cast<absl::StatusCode>(error.code()), error.message());
  if (error.scope() > static_cast<uint32_t>(Scope::kCall) &&
      error.scope() <= static_cast<uint32_t>(Scope::kPeer)) {
    status = WithScope(std::move(status), static_cast<Scope>(error.scope()));
  }
  return status;
}

proto::Buffer EncodeBuffer(const BufferAddress& buffer) {
  proto::Buffer out;
  for (const RegionAddress& region : buffer.regions) {
    proto::Region* to = out.add_regions();
    to->set_key(region.descriptor);
    to->set_offset_bytes(region.offset_bytes);
  }
  out.set_ledger(buffer.ledger);
  out.set_generation(buffer.generation);
  return out;
}

BufferAddress DecodeBuffer(const proto::Buffer& buffer) {
  BufferAddress out;
  for (const proto::Region& region : buffer.regions()) {
    out.regions.push_back({region.key(), region.offset_bytes()});
  }
  out.ledger = buffer.ledger();
  out.generation = buffer.generation();
  return out;
}

namespace {

template <typename Message>
UpdateId UpdateOf(const Message& message) {
  return {.version = message.version(),
          .sequence = message.round().sequence(),
          .epoch = message.round().epoch(),
          .plan_hash = message.plan_hash(),
          .composition = message.composition()};
}

}  // namespace

UpdateId DecodeUpdate(const proto::Start& start) { return UpdateOf(start); }
UpdateId DecodeUpdate(const proto::Prepare& prepare) { return UpdateOf(prepare); }

proto::Round EncodeRound(const UpdateId& update) {
  proto::Round round;
  round.set_epoch(update.epoch);
  round.set_sequence(update.sequence);
  return round;
}

void EncodeLanes(const PeerLanes& lanes, proto::PeerLanes* out) {
  out->set_peer(lanes.peer);
  out->set_role(static_cast<uint32_t>(lanes.id.role));
  out->set_rank(lanes.id.rank);
  out->set_group(lanes.id.group);
  out->set_kept(lanes.kept);
  out->set_first_ledger_entry(lanes.first_ledger_entry);
  for (const LanePath& lane : lanes.lanes) {
    proto::LanePath* path = out->add_lanes();
    path->set_sender_nic(lane.sender_nic);
    path->set_receiver_nic(lane.receiver_nic);
    path->set_bytes_per_second(lane.bytes_per_second);
  }
}

std::vector<PeerLanes> DecodeLanes(const proto::Plan& plan) {
  std::vector<PeerLanes> lanes;
  for (const proto::PeerLanes& of_peer : plan.lanes()) {
    PeerLanes& decoded = lanes.emplace_back();
    decoded.peer = of_peer.peer();
    decoded.id = {static_cast<Role>(of_peer.role()), of_peer.rank(), of_peer.group()};
    decoded.kept = of_peer.kept();
    decoded.first_ledger_entry = of_peer.first_ledger_entry();
    for (const proto::LanePath& path : of_peer.lanes()) {
      decoded.lanes.push_back({path.sender_nic(), path.receiver_nic(), path.bytes_per_second()});
    }
  }
  return lanes;
}

}  // namespace waybill
