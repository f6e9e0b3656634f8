// SPDX-License-Identifier: Apache-2.0

#include "testing/fake_verbs/wire.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"

namespace waybill::fake_verbs {
namespace {

constexpr uint32_t kPacketNumbers = 0xFF'FFFF;
constexpr uint8_t kEndless = 7;

uint32_t PacketsOf(uint64_t size_bytes, ibv_mtu mtu) {
  const uint64_t packet_bytes = uint64_t{128} << mtu;
  return static_cast<uint32_t>(
      std::max<uint64_t>(1, (size_bytes + packet_bytes - 1) / packet_bytes));
}

}  // namespace

Device* Wire::AddDevice(const std::string& name, const DeviceOptions& options) {
  const auto ordinal = static_cast<uint32_t>(devices_.size() + 1);
  return devices_.emplace_back(std::make_unique<Device>(this, name, ordinal, options)).get();
}

QueuePair* Wire::Find(uint64_t identity) const {
  const auto found = queue_pairs_.find(identity);
  return found == queue_pairs_.end() ? nullptr : found->second;
}

int Wire::Misuse(absl::string_view what, int error) {
  misuses_.emplace_back(what);
  return error;
}

bool Wire::IsAlive(const void* object, absl::string_view call) {
  if (alive_.count(object) > 0) return true;
  Misuse(absl::StrCat(call, ": its object is not alive"), 0);
  return false;
}

// --- who is reached ---

bool Wire::Resolves(const ibv_gid& gid) const {
  for (const auto& device : devices_) {
    for (const Port& port : device->ports()) {
      for (const GidRow& row : port.gids) {
        if (std::memcmp(row.gid.data(), gid.raw, row.gid.size()) == 0) return true;
      }
    }
  }
  return false;
}

// A packet of RoCE v1 is none to who listens for v2.
std::optional<ibv_gid_type> Wire::KindOf(const QueuePair& of) {
  const ibv_ah_attr& path = of.attributes().ah_attr;
  const std::vector<GidRow>& gids = of.device().FindPort(of.attributes().port_num)->gids;
  if (path.is_global == 0 || path.grh.sgid_index >= gids.size()) return std::nullopt;
  return gids[path.grh.sgid_index].kind;
}

Wire::End Wire::Target(const QueuePair& from) const {
  const ibv_ah_attr& path = from.attributes().ah_attr;
  const Port& own = *from.device().FindPort(from.attributes().port_num);
  for (const auto& device : devices_) {
    uint8_t number = 0;
    for (const Port& port : device->ports()) {
      ++number;
      if (port.options.infiniband != own.options.infiniband) continue;
      if (path.is_global == 0) {
        if (port.lid == path.dlid) return {device.get(), number};
        continue;
      }
      for (const GidRow& row : port.gids) {
        if (row.kind == KindOf(from) &&
            std::memcmp(row.gid.data(), path.grh.dgid.raw, row.gid.size()) == 0) {
          return {device.get(), number};
        }
      }
    }
  }
  return {nullptr, 0};
}

QueuePair* Wire::PeerOf(const QueuePair& from) const {
  const End source = {&from.device(), from.attributes().port_num};
  const End target = Target(from);
  if (target.first == nullptr || target.first->failed()) return nullptr;
  if (!source.first->FindPort(source.second)->active) return nullptr;
  if (!target.first->FindPort(target.second)->active) return nullptr;
  if (cuts_.count(std::minmax(source, target)) > 0) return nullptr;
  QueuePair* to = target.first->FindQueuePair(from.attributes().dest_qp_num);
  if (to == nullptr || !to->receives()) return nullptr;
  // It drops what is not from the one that it was connected to, or out of sequence.
  if (to->attributes().port_num != target.second) return nullptr;
  if (to->attributes().dest_qp_num != from.qp_num || Target(*to) != source) return nullptr;
  if (KindOf(*to) != KindOf(from)) return nullptr;
  return to->expected_packet == from.next_packet ? to : nullptr;
}

bool Wire::IsLost(const QueuePair& from, const SendRequest& request) const {
  const auto longest =
      longest_.find(std::minmax(End{&from.device(), from.attributes().port_num}, Target(from)));
  const uint64_t packet_bytes =
      std::min(request.size_bytes, uint64_t{128} << from.attributes().path_mtu);
  return longest != longest_.end() && packet_bytes > longest->second;
}

// --- what moves ---

bool Wire::Gather(const QueuePair& from, SendRequest& request, Pieces& pieces) {
  if (request.inlined) {
    pieces.emplace_back(request.inlined->data(), request.inlined->size());
    return true;
  }
  for (const ibv_sge& piece : request.pieces) {
    if (piece.length == 0) continue;
    std::byte* const bytes =
        from.device().memory().Local(piece.lkey, from.pd, piece.addr, piece.length,
                                     request.is_read ? unsigned{IBV_ACCESS_LOCAL_WRITE} : 0u);
    if (bytes == nullptr) return false;
    pieces.emplace_back(bytes, piece.length);
  }
  return true;
}

void Wire::Copy(const SendRequest& request, const Pieces& pieces, std::byte* at_peer) {
  for (const auto& [bytes, size] : pieces) {
    if (size == 0) continue;
    std::memmove(request.is_read ? bytes : at_peer, request.is_read ? at_peer : bytes, size);
    at_peer += size;
  }
}

bool Wire::WaitsForEver(const QueuePair& from, const QueuePair* to) {
  if (to != nullptr) return from.attributes().rnr_retry == kEndless;
  return from.attributes().retry_cnt == kEndless &&
         from.device().options().seven_retries_are_endless;
}

// One request, or why it does not move. False: nothing changed.
bool Wire::Advance(QueuePair& from) {
  SendRequest* const request = from.head();
  if (request == nullptr || from.device().failed()) return false;
  const auto fail = [&](ibv_wc_status status) {
    from.FailHead(status);
    return true;
  };
  const auto scripted = from.ScriptedFailureOfHead();
  if (scripted && !scripted->landed) return fail(scripted->status);
  const Port& port = *from.device().FindPort(from.attributes().port_num);
  if (request->size_bytes > port.options.max_message_bytes) return fail(IBV_WC_LOC_LEN_ERR);
  Pieces pieces;
  if (!Gather(from, *request, pieces)) return fail(IBV_WC_LOC_PROT_ERR);

  QueuePair* to = IsLost(from, *request) ? nullptr : PeerOf(from);
  if (to == nullptr) {
    if (WaitsForEver(from, to) || !from.HasTriedFor(now_, options_.patience)) return false;
    return fail(IBV_WC_RETRY_EXC_ERR);
  }
  // By the peer, which may be this queue pair itself.
  const auto refuse = [&](ibv_event_type event, ibv_wc_status status) {
    if (to != &from) to->EnterError();
    to->device().Raise(*to, event);
    return fail(status);
  };
  const uint32_t packets = PacketsOf(request->size_bytes, from.attributes().path_mtu);
  if ((packets > 1 && from.attributes().path_mtu > to->attributes().path_mtu) ||
      (request->is_read && to->attributes().max_dest_rd_atomic == 0)) {
    return refuse(IBV_EVENT_QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
  }
  std::byte* at_peer = nullptr;
  if (request->size_bytes > 0) {  // The key of a write of nothing is not looked at.
    const unsigned access = request->is_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    if ((to->attributes().qp_access_flags & access) != 0) {
      at_peer = to->device().memory().Remote(request->remote_key, to->pd, request->remote_address,
                                             request->size_bytes, access);
    }
    if (at_peer == nullptr) {
      return refuse(IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
    }
  }
  if (request->takes_receive() && !to->has_receive()) {
    if (WaitsForEver(from, to) || !from.HasTriedFor(now_, options_.patience)) return false;
    return fail(IBV_WC_RNR_RETRY_EXC_ERR);
  }
  from.HasGotThrough();
  Copy(*request, pieces, at_peer);
  if (scripted) return fail(scripted->status);
  if (request->is_read && to->device().options().after_read) to->device().options().after_read();
  from.next_packet = (from.next_packet + packets) & kPacketNumbers;
  to->expected_packet = (to->expected_packet + packets) & kPacketNumbers;
  if (request->takes_receive()) to->TakeReceive(*request);
  from.CompleteHead();
  return true;
}

void Wire::Tick() {
  ++now_;
  if (options_.seed == 0) {
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto& [identity, queue_pair] : queue_pairs_) {
        while (Advance(*queue_pair)) moved = true;
      }
    }
    return;
  }
  for (uint64_t steps = random_() % 12; steps > 0 && !queue_pairs_.empty(); --steps) {
    auto chosen = queue_pairs_.begin();
    std::advance(chosen, static_cast<std::ptrdiff_t>(random_() % queue_pairs_.size()));
    Advance(*chosen->second);
  }
}

uint64_t Wire::VisibleAt() {
  return options_.completion_delay == 0 ? 0 : now_ + random_() % (options_.completion_delay + 1);
}

bool Wire::IsBusy() const {
  if (options_.seed == 0 && options_.patience == 0) return false;
  return std::any_of(queue_pairs_.begin(), queue_pairs_.end(), [&](const auto& entry) {
    const SendRequest* request = entry.second->head();
    if (request == nullptr || entry.second->device().failed()) return false;
    const QueuePair* to = IsLost(*entry.second, *request) ? nullptr : PeerOf(*entry.second);
    const bool is_stuck = to == nullptr || (request->takes_receive() && !to->has_receive());
    return !is_stuck || !WaitsForEver(*entry.second, to);
  });
}

void Wire::KeepAwake(const ibv_qp& poster) const {
  if (IsBusy()) static_cast<CompletionQueue*>(poster.send_cq)->Wake();
}

}  // namespace waybill::fake_verbs
