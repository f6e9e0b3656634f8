// SPDX-License-Identifier: Apache-2.0

#include "testing/fake_verbs/fake_host.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <utility>

namespace waybill::fake_verbs {
namespace {

using Lock = std::lock_guard<std::mutex>;

Device& DeviceOf(const ibv_context* context) { return *static_cast<Device*>(context->device); }

bool IsOfQueuePair(const ibv_async_event& event) {
  return event.event_type == IBV_EVENT_QP_FATAL || event.event_type == IBV_EVENT_QP_REQ_ERR ||
         event.event_type == IBV_EVENT_QP_ACCESS_ERR;
}

// A script that names what is not there is a mistake of the test.
[[noreturn]] void NoSuch(absl::string_view what, absl::string_view name) {
  std::cerr << "fake_verbs: there is no " << what << " " << name << "\n";
  std::abort();
}

}  // namespace

void FakeHost::AddDevice(const std::string& name, const DeviceOptions& options) {
  const Lock lock(wire_.mutex());
  devices_.push_back(wire_.AddDevice(name, options));
}

Device& FakeHost::device(absl::string_view name) const {
  for (Device* device : devices_) {
    if (name == device->name) return *device;
  }
  NoSuch("device", name);
}

QueuePair& FakeHost::FindQueuePair(absl::string_view name, uint32_t number) const {
  QueuePair* found = device(name).FindQueuePair(number);
  if (found == nullptr) NoSuch("queue pair", std::to_string(number));
  return *found;
}

CompletionQueue& FakeHost::FindQueue(absl::string_view name, uint32_t number,
                                     Direction direction) const {
  const QueuePair& of = FindQueuePair(name, number);
  return *static_cast<CompletionQueue*>(direction == Direction::kSend ? of.send_cq : of.recv_cq);
}

// --- the script ---

void FakeHost::SetPort(absl::string_view name, uint8_t port, bool active) {
  const Lock lock(wire_.mutex());
  device(name).SetPort(port, active);
}

void FakeHost::SetGids(absl::string_view name, uint8_t port, std::vector<GidRow> gids) {
  const Lock lock(wire_.mutex());
  device(name).SetGids(port, std::move(gids));
}

void FakeHost::FailDevice(absl::string_view name) {
  const Lock lock(wire_.mutex());
  device(name).Fail();
}

void FakeHost::FailQueuePair(absl::string_view name, uint32_t number) {
  const Lock lock(wire_.mutex());
  QueuePair& queue_pair = FindQueuePair(name, number);
  queue_pair.EnterError();
  device(name).Raise(queue_pair, IBV_EVENT_QP_FATAL);
}

void FakeHost::FailRequest(absl::string_view name, uint32_t number, uint64_t k,
                           ibv_wc_status status, bool landed) {
  const Lock lock(wire_.mutex());
  FindQueuePair(name, number).FailRequest(k, {status, landed});
}

void FakeHost::RefusePost(absl::string_view name, uint32_t number, uint32_t accepted, int error) {
  const Lock lock(wire_.mutex());
  FindQueuePair(name, number).RefusePost(accepted, error);
}

void FakeHost::FailRegistrations(absl::string_view name, const RegistrationFault& fault) {
  const Lock lock(wire_.mutex());
  device(name).memory().Fail(fault);
}

void FakeHost::FailDeregistrations(absl::string_view name, uint32_t count) {
  const Lock lock(wire_.mutex());
  device(name).memory().FailDeregistrations(count);
}

void FakeHost::Overrun(absl::string_view name, uint32_t number, Direction direction) {
  const Lock lock(wire_.mutex());
  device(name).Kill(&FindQueue(name, number, direction));
}

void FakeHost::AddCompletion(absl::string_view name, uint32_t number, Direction direction,
                             const ibv_wc& done) {
  const Lock lock(wire_.mutex());
  device(name).Complete(&FindQueue(name, number, direction), {.done = done});
}

void FakeHost::DuplicateCompletions(absl::string_view name, bool duplicate) {
  const Lock lock(wire_.mutex());
  device(name).DuplicateCompletions(duplicate);
}

absl::Duration FakeHost::busy(absl::string_view name, bool of_this_thread) const {
  const Lock lock(wire_.mutex());
  return device(name).busy(of_this_thread);
}

DeviceCounts FakeHost::counts(absl::string_view name) const {
  const Lock lock(wire_.mutex());
  return device(name).counts();
}

std::vector<uint32_t> FakeHost::queue_pairs(absl::string_view name) const {
  const Lock lock(wire_.mutex());
  std::vector<uint32_t> numbers;
  for (const auto& [number, queue_pair] : device(name).queue_pairs()) numbers.push_back(number);
  return numbers;
}

unsigned FakeHost::access(absl::string_view name, uint32_t number) const {
  const Lock lock(wire_.mutex());
  return static_cast<unsigned>(FindQueuePair(name, number).attributes().qp_access_flags);
}

size_t FakeHost::unpolled(absl::string_view name, uint32_t number, Direction direction) const {
  const Lock lock(wire_.mutex());
  return FindQueue(name, number, direction).size();
}

std::optional<Registration> FakeHost::newest_registration(absl::string_view name) const {
  const Lock lock(wire_.mutex());
  const Registration* newest = device(name).memory().newest();
  return newest == nullptr ? std::nullopt : std::optional(*newest);
}

// --- libibverbs: devices ---

ibv_device** FakeHost::GetDeviceList(int* count) {
  const Lock lock(wire_.mutex());
  auto** list = new ibv_device*[devices_.size() + 1];
  std::copy(devices_.begin(), devices_.end(), list);
  list[devices_.size()] = nullptr;
  if (count != nullptr) *count = static_cast<int>(devices_.size());
  wire_.Lives(list);
  return list;
}

void FakeHost::FreeDeviceList(ibv_device** list) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(list, "ibv_free_device_list")) return;
  wire_.Died(list);
  delete[] list;
}

const char* FakeHost::GetDeviceName(ibv_device* device) { return device->name; }

template <typename Object>
Object* FakeHost::Made(Object* object) {
  if (object != nullptr) wire_.Lives(object);
  return object;
}

ibv_context* FakeHost::OpenDevice(ibv_device* device) {
  const Lock lock(wire_.mutex());
  return Made(static_cast<Device*>(device)->Open());
}

int FakeHost::CloseDevice(ibv_context* context) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(context, "ibv_close_device")) return EINVAL;
  const int error = DeviceOf(context).Close(context);
  if (error == 0) wire_.Died(context);
  return error;
}

int FakeHost::QueryDevice(ibv_context* context, ibv_device_attr* attributes) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(context, "ibv_query_device")) return EINVAL;
  DeviceOf(context).Query(attributes);
  return 0;
}

int FakeHost::QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(context, "ibv_query_port")) return EINVAL;
  return DeviceOf(context).QueryPort(port, attributes);
}

int FakeHost::QueryGid(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* gid) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(context, "ibv_query_gid_ex")) return EINVAL;
  return DeviceOf(context).QueryGid(port, index, gid);
}

bool FakeHost::IsOwnGid(const ibv_gid_entry& gid) { return gid.ndev_ifindex != kForeignInterface; }

int FakeHost::QueryPkey(ibv_context* context, uint8_t port, int index, __be16* key) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(context, "ibv_query_pkey")) return EINVAL;
  return DeviceOf(context).QueryPkey(port, index, key);
}

int FakeHost::GetAsyncEvent(ibv_context* context, ibv_async_event* event) {
  auto& events = static_cast<Context*>(context)->events;
  if (!events.AwaitOne()) return -1;
  const Lock lock(wire_.mutex());
  const std::optional<ibv_async_event> taken = events.Take();
  if (!taken) {
    errno = EAGAIN;
    return -1;
  }
  *event = *taken;
  if (event->event_type == IBV_EVENT_CQ_ERR) {
    ++static_cast<CompletionQueue*>(event->element.cq)->events_out;
  } else if (IsOfQueuePair(*event)) {
    ++event->element.qp->events_completed;
  }
  return 0;
}

void FakeHost::AckAsyncEvent(ibv_async_event* event) {
  const Lock lock(wire_.mutex());
  if (event->event_type == IBV_EVENT_CQ_ERR) {
    if (!wire_.IsAlive(event->element.cq, "ibv_ack_async_event")) return;
    --static_cast<CompletionQueue*>(event->element.cq)->events_out;
  } else if (IsOfQueuePair(*event)) {
    if (wire_.IsAlive(event->element.qp, "ibv_ack_async_event")) {
      --event->element.qp->events_completed;
    }
  }
}

// --- memory ---

ibv_pd* FakeHost::AllocPd(ibv_context* context) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(context, "ibv_alloc_pd")) return nullptr;
  return Made(DeviceOf(context).AllocatePd(context));
}

int FakeHost::DeallocPd(ibv_pd* pd) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(pd, "ibv_dealloc_pd")) return EINVAL;
  const int error = DeviceOf(pd->context).FreePd(pd);
  if (error == 0) wire_.Died(pd);
  return error;
}

ibv_mr* FakeHost::RegMr(ibv_pd* pd, void* address, size_t size, unsigned access) {
  const DeviceOptions& options = DeviceOf(pd->context).options();
  if (options.during_registration) options.during_registration();
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(pd, "ibv_reg_mr")) return nullptr;
  return Made(
      DeviceOf(pd->context)
          .Register(pd, {.address = reinterpret_cast<uintptr_t>(address), .size = size}, access));
}

ibv_mr* FakeHost::RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t size, uint64_t address, int fd,
                              int access) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(pd, "ibv_reg_dmabuf_mr")) return nullptr;
  return Made(DeviceOf(pd->context)
                  .Register(pd,
                            {.address = address,
                             .size = size,
                             .kind = RegistrationKind::kDmabuf,
                             .fd = fd,
                             .offset = offset},
                            static_cast<unsigned>(access)));
}

int FakeHost::DeregMr(ibv_mr* mr) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(mr, "ibv_dereg_mr")) return EINVAL;
  const int error = DeviceOf(mr->context).Deregister(mr);
  if (error == 0) wire_.Died(mr);
  return error;
}

// --- completions ---

ibv_comp_channel* FakeHost::CreateCompChannel(ibv_context* context) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(context, "ibv_create_comp_channel")) return nullptr;
  return Made(DeviceOf(context).CreateChannel(context));
}

int FakeHost::DestroyCompChannel(ibv_comp_channel* channel) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(channel, "ibv_destroy_comp_channel")) return EINVAL;
  const int error = DeviceOf(channel->context).DestroyChannel(channel);
  if (error == 0) wire_.Died(channel);
  return error;
}

int FakeHost::GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) {
  auto& events = static_cast<Channel*>(channel)->events;
  if (!events.AwaitOne()) return -1;
  const Lock lock(wire_.mutex());
  const std::optional<ibv_cq*> taken = events.Take();
  if (!taken) {
    errno = EAGAIN;
    return -1;
  }
  *cq = *taken;
  ++static_cast<CompletionQueue*>(*cq)->events_out;
  return 0;
}

void FakeHost::AckCqEvents(ibv_cq* cq, unsigned count) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(cq, "ibv_ack_cq_events")) return;
  auto& out = static_cast<CompletionQueue*>(cq)->events_out;
  if (count > out) wire_.Misuse("ibv_ack_cq_events: more than were got", 0);
  out -= std::min(out, count);
}

ibv_cq* FakeHost::CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(context, "ibv_create_cq")) return nullptr;
  return Made(DeviceOf(context).CreateQueue(context, entries, channel));
}

int FakeHost::DestroyCq(ibv_cq* cq) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(cq, "ibv_destroy_cq")) return EINVAL;
  const int error = DeviceOf(cq->context).DestroyQueue(cq);
  if (error == 0) wire_.Died(cq);
  return error;
}

int FakeHost::ReqNotifyCq(ibv_cq* cq) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(cq, "ibv_req_notify_cq")) return EINVAL;
  auto* queue = static_cast<CompletionQueue*>(cq);
  queue->Arm(/*at_once=*/wire_.IsBusy() || queue->HoldsInvisible(wire_.now()));
  return 0;
}

int FakeHost::PollCq(ibv_cq* cq, int count, ibv_wc* completions) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(cq, "ibv_poll_cq")) return -1;
  wire_.Tick();
  int taken = 0;
  Completion completion;
  while (taken < count && static_cast<CompletionQueue*>(cq)->Take(wire_.now(), completion)) {
    completions[taken++] = completion.done;
    QueuePair* of = wire_.Find(completion.queue_pair);
    if (of == nullptr) continue;
    if (completion.is_send) {
      of->RetireSends(completion.end);
    } else {
      of->RetireReceives(completion.end);
    }
  }
  return taken;
}

// --- queue pairs ---

ibv_qp* FakeHost::CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(pd, "ibv_create_qp")) return nullptr;
  return Made(DeviceOf(pd->context).CreateQueuePair(pd, *attributes));
}

int FakeHost::ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  const DeviceOptions& options = DeviceOf(qp->context).options();
  if (options.during_modification) options.during_modification(attributes->qp_state);
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(qp, "ibv_modify_qp")) return EINVAL;
  DeviceOf(qp->context).Spend(options.queue_pair_call);
  if (DeviceOf(qp->context).failed()) return EIO;
  return static_cast<QueuePair*>(qp)->Modify(*attributes, mask);
}

int FakeHost::DestroyQp(ibv_qp* qp) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(qp, "ibv_destroy_qp")) return EINVAL;
  const ibv_qp* const was = qp;
  const int error = DeviceOf(qp->context).DestroyQueuePair(qp);
  if (error == 0) wire_.Died(was);
  return error;
}

int FakeHost::PostSend(ibv_qp* qp, ibv_send_wr* chain, ibv_send_wr** bad) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(qp, "ibv_post_send")) return EINVAL;
  DeviceOf(qp->context).CountPost();
  const int error = static_cast<QueuePair*>(qp)->PostSend(chain, bad);
  wire_.KeepAwake(*qp);
  return error;
}

int FakeHost::PostRecv(ibv_qp* qp, ibv_recv_wr* chain, ibv_recv_wr** bad) {
  const Lock lock(wire_.mutex());
  if (!wire_.IsAlive(qp, "ibv_post_recv")) return EINVAL;
  const int error = static_cast<QueuePair*>(qp)->PostReceive(chain, bad);
  wire_.KeepAwake(*qp);
  return error;
}

// --- texts ---

const char* FakeHost::StatusText(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_LEN_ERR:
      return "local length error";
    case IBV_WC_LOC_QP_OP_ERR:
      return "local QP operation error";
    case IBV_WC_LOC_PROT_ERR:
      return "local protection error";
    case IBV_WC_WR_FLUSH_ERR:
      return "Work Request Flushed Error";
    case IBV_WC_REM_INV_REQ_ERR:
      return "remote invalid request error";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error";
    case IBV_WC_RETRY_EXC_ERR:
      return "transport retry counter exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "RNR retry counter exceeded";
    default:
      return "unknown";
  }
}

const char* FakeHost::EventText(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_CQ_ERR:
      return "CQ error";
    case IBV_EVENT_QP_FATAL:
      return "local work queue catastrophic error";
    case IBV_EVENT_QP_REQ_ERR:
      return "invalid request local work queue error";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "local access violation work queue error";
    case IBV_EVENT_DEVICE_FATAL:
      return "local catastrophic error";
    case IBV_EVENT_PORT_ACTIVE:
      return "port active";
    case IBV_EVENT_PORT_ERR:
      return "port error";
    case IBV_EVENT_GID_CHANGE:
      return "GID table change";
    default:
      return "unknown event";
  }
}

}  // namespace waybill::fake_verbs
