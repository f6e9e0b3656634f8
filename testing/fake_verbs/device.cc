// SPDX-License-Identifier: Apache-2.0

#include "testing/fake_verbs/device.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "testing/fake_verbs/wire.h"

namespace waybill::fake_verbs {
namespace {

constexpr uint64_t kLockedBytes = 64;
constexpr uint32_t kFirstQueuePair = 17;  // The lower ones are a NIC's own.

std::vector<GidRow> UsualGids(uint32_t ordinal, uint8_t port) {
  const auto host = static_cast<uint16_t>(ordinal * 16 + port);
  const auto high = static_cast<uint8_t>(host >> 8);
  const auto low = static_cast<uint8_t>(host);
  return {LinkLocalGid(IBV_GID_TYPE_ROCE_V1, host), LinkLocalGid(IBV_GID_TYPE_ROCE_V2, host),
          Ipv4Gid(IBV_GID_TYPE_ROCE_V1, 10, 0, high, low),
          Ipv4Gid(IBV_GID_TYPE_ROCE_V2, 10, 0, high, low)};
}

template <typename Object>
void Erase(std::vector<std::unique_ptr<Object>>& objects, const Object* object) {
  std::erase_if(objects, [&](const auto& held) { return held.get() == object; });
}

Context* ContextOf(ibv_context* context) { return static_cast<Context*>(context); }

}  // namespace

Device::Device(Wire* wire, const std::string& device_name, uint32_t ordinal,
               const DeviceOptions& options)
    : ibv_device{},
      wire_(*wire),
      options_(options),
      memory_(ordinal << 20 | 0x100, options_),
      last_queue_pair_(kFirstQueuePair + ordinal * 1000) {
  absl::string_view(device_name).copy(name, sizeof(name) - 1);
  transport_type = options.transport;
  for (const PortOptions& port : options.ports) {
    const auto number = static_cast<uint8_t>(ports_.size() + 1);
    Port made{.options = port, .active = port.active};
    if (port.infiniband) made.lid = static_cast<uint16_t>(ordinal * 16 + number);
    if (port.gids) {
      made.gids = *port.gids;
    } else if (port.infiniband) {
      made.gids = {LinkLocalGid(IBV_GID_TYPE_IB, made.lid)};
    } else {
      made.gids = UsualGids(ordinal, number);
    }
    ports_.push_back(std::move(made));
  }
}

DeviceCounts Device::counts() const {
  DeviceCounts counts = counts_;
  counts.contexts = contexts_.size();
  counts.protection_domains = protection_domains_.size();
  counts.registrations = memory_.count();
  counts.completion_queues = completion_queues_.size();
  counts.queue_pairs = queue_pairs_.size();
  return counts;
}

// --- the device and its ports ---

ibv_context* Device::Open() {
  if (failed_) {
    errno = EIO;
    return nullptr;
  }
  auto context = std::make_unique<Context>();
  context->device = this;
  context->async_fd = context->events.fd();
  return contexts_.emplace_back(std::move(context)).get();
}

int Device::Close(ibv_context* context) {
  if (ContextOf(context)->users > 0) return wire_.Misuse("ibv_close_device: it is in use", EBUSY);
  Erase(contexts_, ContextOf(context));
  return 0;
}

void Device::Query(ibv_device_attr* attributes) const {
  *attributes = {};
  attributes->max_mr_size = options_.max_registration_bytes;
  attributes->vendor_id = options_.vendor_id;
  attributes->max_qp = static_cast<int>(options_.max_queue_pairs);
  attributes->max_qp_wr = static_cast<int>(options_.max_requests);
  attributes->max_sge = static_cast<int>(options_.max_pieces);
  attributes->max_cq = 1024;
  attributes->max_cqe = static_cast<int>(options_.max_cqe);
  attributes->max_mr = 1 << 20;
  attributes->max_pd = 1024;
  attributes->phys_port_cnt = static_cast<uint8_t>(ports_.size());
}

int Device::QueryPort(uint8_t number, ibv_port_attr* attributes) const {
  if (failed_) return EIO;
  const Port* port = FindPort(number);
  if (port == nullptr) return EINVAL;
  *attributes = {};
  attributes->state = port->active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  attributes->max_mtu = IBV_MTU_4096;
  attributes->active_mtu = port->options.mtu;
  attributes->gid_tbl_len = static_cast<int>(port->gids.size());
  attributes->max_msg_sz = port->options.max_message_bytes;
  attributes->pkey_tbl_len = 1;
  attributes->lid = port->lid;
  attributes->active_width = port->options.width;
  attributes->active_speed = port->options.speed;
  attributes->link_layer =
      port->options.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  return 0;
}

int Device::QueryGid(uint32_t number, uint32_t index, ibv_gid_entry* gid) const {
  const Port* port = FindPort(static_cast<uint8_t>(number));
  if (port == nullptr || index >= port->gids.size()) return EINVAL;
  const GidRow& row = port->gids[index];
  if (row.gid == GidRow{}.gid) return ENODATA;
  *gid = {.gid_index = index,
          .port_num = number,
          .gid_type = row.kind,
          .ndev_ifindex = row.is_foreign ? kForeignInterface : 0};
  std::memcpy(gid->gid.raw, row.gid.data(), row.gid.size());
  return 0;
}

int Device::QueryPkey(uint8_t number, int index, __be16* key) const {
  const Port* port = FindPort(number);
  if (port == nullptr || index != 0) return -1;
  *key = htons(port->options.partition_key);
  return 0;
}

const Port* Device::FindPort(uint8_t number) const {
  return number >= 1 && number <= ports_.size() ? &ports_[number - 1] : nullptr;
}

int Device::CheckPath(uint8_t number, const ibv_qp_attr& attributes) const {
  const Port& port = *FindPort(number);
  const ibv_ah_attr& path = attributes.ah_attr;
  if (path.port_num != number || attributes.path_mtu > port.options.mtu ||
      attributes.path_mtu < IBV_MTU_256) {
    return EINVAL;
  }
  if (path.is_global == 0) return port.options.infiniband && path.dlid != 0 ? 0 : EINVAL;
  if (path.grh.sgid_index >= port.gids.size()) return EINVAL;
  const GidRow& own = port.gids[path.grh.sgid_index];
  if (own.gid == GidRow{}.gid || own.is_foreign) return EINVAL;
  // On Ethernet the peer's hardware address is looked up.
  if (!port.options.infiniband && !wire_.Resolves(path.grh.dgid)) return ETIMEDOUT;
  return 0;
}

// --- memory ---

void Device::Spend(absl::Duration time) {
  wire_.Spend(time);
  busy_[std::this_thread::get_id()] += time;
}

absl::Duration Device::busy(bool of_this_thread) const {
  absl::Duration sum;
  for (const auto& [thread, time] : busy_) {
    if ((thread == std::this_thread::get_id()) == of_this_thread) sum += time;
  }
  return sum;
}

bool Device::Lock(uint64_t bytes) {
  if (bytes > options_.max_locked_bytes - locked_bytes_) {
    errno = ENOMEM;
    return false;
  }
  locked_bytes_ += bytes;
  return true;
}

ibv_pd* Device::AllocatePd(ibv_context* context) {
  auto pd = std::make_unique<ProtectionDomain>();
  pd->context = context;
  ++ContextOf(context)->users;
  return protection_domains_.emplace_back(std::move(pd)).get();
}

int Device::FreePd(ibv_pd* pd) {
  auto* held = static_cast<ProtectionDomain*>(pd);
  if (held->users > 0) return wire_.Misuse("ibv_dealloc_pd: it is in use", EBUSY);
  --ContextOf(pd->context)->users;
  Erase(protection_domains_, held);
  return 0;
}

ibv_mr* Device::Register(ibv_pd* pd, const Range& range, unsigned access) {
  if (failed_ || (range.kind == RegistrationKind::kDmabuf && !options_.dmabuf)) {
    errno = failed_ ? EIO : EOPNOTSUPP;
    return nullptr;
  }
  Spend(options_.registration);
  if (!Lock(range.size)) return nullptr;
  Registration* made = memory_.Register(pd, range, access);
  if (made == nullptr) {
    locked_bytes_ -= range.size;
    return nullptr;
  }
  ++static_cast<ProtectionDomain*>(pd)->users;
  return made;
}

int Device::Deregister(ibv_mr* mr) {
  auto* const domain = static_cast<ProtectionDomain*>(mr->pd);
  const uint64_t size = mr->length;
  const int error = memory_.Deregister(mr);
  if (error != 0) return error;
  --domain->users;
  locked_bytes_ -= size;
  return 0;
}

// --- completions ---

ibv_comp_channel* Device::CreateChannel(ibv_context* context) {
  auto channel = std::make_unique<Channel>();
  channel->context = context;
  channel->fd = channel->events.fd();
  ++ContextOf(context)->users;
  return channels_.emplace_back(std::move(channel)).get();
}

int Device::DestroyChannel(ibv_comp_channel* channel) {
  if (channel->refcnt > 0) return wire_.Misuse("ibv_destroy_comp_channel: it is in use", EBUSY);
  --ContextOf(channel->context)->users;
  Erase(channels_, static_cast<Channel*>(channel));
  return 0;
}

ibv_cq* Device::CreateQueue(ibv_context* context, int entries, ibv_comp_channel* channel) {
  if (failed_ || entries < 1 || static_cast<uint32_t>(entries) > options_.max_cqe) {
    errno = failed_ ? EIO : EINVAL;
    return nullptr;
  }
  if (!Lock(static_cast<uint64_t>(entries) * kLockedBytes)) return nullptr;
  ++ContextOf(context)->users;
  if (channel != nullptr) ++channel->refcnt;
  return completion_queues_
      .emplace_back(std::make_unique<CompletionQueue>(context, entries, channel))
      .get();
}

int Device::DestroyQueue(ibv_cq* cq) {
  auto* queue = static_cast<CompletionQueue*>(cq);
  if (queue->queue_pairs > 0) return wire_.Misuse("ibv_destroy_cq: it is in use", EBUSY);
  // A real one waits for it, for ever.
  if (queue->events_out > 0) return wire_.Misuse("ibv_destroy_cq: unacknowledged events", EBUSY);
  if (cq->channel != nullptr) {
    --cq->channel->refcnt;
    static_cast<Channel*>(cq->channel)->events.Remove([&](ibv_cq* of) { return of == cq; });
  }
  ContextOf(cq->context)->events.Remove([&](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq;
  });
  --ContextOf(cq->context)->users;
  locked_bytes_ -= static_cast<uint64_t>(cq->cqe) * kLockedBytes;
  Erase(completion_queues_, queue);
  return 0;
}

void Device::Complete(CompletionQueue* queue, Completion completion) {
  if (failed_) return;
  completion.visible_at = wire_.VisibleAt();
  for (int i = 0; i < (duplicates_ ? 2 : 1); ++i) {
    if (!queue->Push(completion)) Kill(queue);
  }
}

void Device::Kill(CompletionQueue* queue) {
  queue->Kill();
  ibv_async_event event{};
  event.element.cq = queue;
  event.event_type = IBV_EVENT_CQ_ERR;
  ContextOf(queue->context)->events.Push(event);
  for (const auto& [number, queue_pair] : queue_pairs_) {
    if (queue_pair->send_cq == queue || queue_pair->recv_cq == queue) queue_pair->EnterError();
  }
}

// --- queue pairs ---

uint32_t Device::NextQueuePairNumber() {
  uint32_t number = last_queue_pair_;
  if (!options_.reuses_queue_pair_numbers) return last_queue_pair_ = number + 1;
  while (queue_pairs_.count(++number) > 0) {
  }
  return number;
}

ibv_qp* Device::CreateQueuePair(ibv_pd* pd, const ibv_qp_init_attr& attributes) {
  Spend(options_.queue_pair_call);
  const ibv_qp_cap& cap = attributes.cap;
  const uint32_t most = options_.max_requests;
  const uint32_t pieces = options_.max_pieces;
  int error = 0;
  if (failed_) {
    error = EIO;
  } else if (attributes.qp_type != IBV_QPT_RC || !options_.reliable_connections) {
    error = EOPNOTSUPP;
  } else if (attributes.send_cq == nullptr || attributes.recv_cq == nullptr ||
             attributes.send_cq->context != pd->context ||
             attributes.recv_cq->context != pd->context || cap.max_send_wr > most ||
             cap.max_recv_wr > most || cap.max_send_sge > pieces || cap.max_recv_sge > pieces ||
             cap.max_inline_data > options_.max_inline_bytes) {
    error = EINVAL;
  } else if (queue_pairs_.size() >= options_.max_queue_pairs) {
    error = ENOMEM;
  }
  if (error != 0) {
    errno = error;
    return nullptr;
  }
  if (!Lock((cap.max_send_wr + cap.max_recv_wr) * kLockedBytes)) return nullptr;
  const uint32_t number = NextQueuePairNumber();
  auto made = std::make_unique<QueuePair>(this, wire_.NextIdentity(), number, pd, attributes);
  ++static_cast<ProtectionDomain*>(pd)->users;
  ++static_cast<CompletionQueue*>(made->send_cq)->queue_pairs;
  ++static_cast<CompletionQueue*>(made->recv_cq)->queue_pairs;
  wire_.Add(made.get());
  return (queue_pairs_[number] = std::move(made)).get();
}

int Device::DestroyQueuePair(ibv_qp* qp) {
  auto* queue_pair = static_cast<QueuePair*>(qp);
  if (qp->events_completed > 0) {
    return wire_.Misuse("ibv_destroy_qp: unacknowledged events", EBUSY);
  }
  Spend(options_.queue_pair_call);
  wire_.Remove(queue_pair);
  for (ibv_cq* cq : {qp->send_cq, qp->recv_cq}) {
    auto* queue = static_cast<CompletionQueue*>(cq);
    if (options_.completions_outlive_queue_pairs) {
      queue->Settle();
    } else {
      queue->Remove(queue_pair->identity());
    }
    --queue->queue_pairs;
  }
  ContextOf(qp->context)->events.Remove([&](const ibv_async_event& event) {
    return event.element.qp == qp;
  });
  --static_cast<ProtectionDomain*>(qp->pd)->users;
  locked_bytes_ -= queue_pair->requests() * kLockedBytes;
  queue_pairs_.erase(qp->qp_num);
  return 0;
}

QueuePair* Device::FindQueuePair(uint32_t number) const {
  const auto found = queue_pairs_.find(number);
  return found == queue_pairs_.end() ? nullptr : found->second.get();
}

void Device::Count(const SendRequest& request) {
  ++counts_.requests;
  if (request.signalled) ++counts_.signalled;
  if (request.is_read) ++counts_.reads;
}

// --- events ---

void Device::Raise(QueuePair& queue_pair, ibv_event_type type) {
  ibv_async_event event{};
  event.element.qp = &queue_pair;
  event.event_type = type;
  ContextOf(queue_pair.context)->events.Push(event);
}

void Device::RaiseForAll(ibv_async_event event) {
  for (const auto& context : contexts_) context->events.Push(event);
}

void Device::SetPort(uint8_t number, bool active) {
  ports_.at(number - 1u).active = active;
  ibv_async_event event{};
  event.element.port_num = number;
  event.event_type = active ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
  RaiseForAll(event);
}

void Device::SetGids(uint8_t number, std::vector<GidRow> gids) {
  ports_.at(number - 1u).gids = std::move(gids);
  ibv_async_event event{};
  event.element.port_num = number;
  event.event_type = IBV_EVENT_GID_CHANGE;
  RaiseForAll(event);
}

void Device::Fail() {
  failed_ = true;
  ibv_async_event event{};
  event.event_type = IBV_EVENT_DEVICE_FATAL;
  RaiseForAll(event);
}

}  // namespace waybill::fake_verbs
