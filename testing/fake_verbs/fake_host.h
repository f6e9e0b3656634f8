// SPDX-License-Identifier: Apache-2.0

// A host on a network of simulated NICs: the Verbs that its processes use, and the script of
// faults.
#ifndef WAYBILL_TESTING_FAKE_VERBS_FAKE_HOST_H_
#define WAYBILL_TESTING_FAKE_VERBS_FAKE_HOST_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/fabric/verbs/verbs.h"
#include "testing/fake_verbs/device.h"
#include "testing/fake_verbs/device_options.h"
#include "testing/fake_verbs/memory.h"
#include "testing/fake_verbs/wire.h"

namespace waybill::fake_verbs {

enum class Direction { kSend, kReceive };

// Thread-safe. A new fabric on a host stands for a restarted process.
class FakeHost : public verbs::Verbs {
 public:
  explicit FakeHost(Wire* wire) : wire_(*wire) {}

  void AddDevice(const std::string& name, const DeviceOptions& options = {});

  // --- the script; it names existing devices and the numbers of existing queue pairs ---

  void SetPort(absl::string_view device, uint8_t port,
               bool active);  // Also reports the port's event.
  void SetGids(absl::string_view device, uint8_t port, std::vector<GidRow> gids);
  // Kills a device: nothing completes on it any more, and every call that makes an object fails.
  void FailDevice(absl::string_view device);
  // Moves a queue pair to ERR, which flushes it, and reports the event to the program.
  void FailQueuePair(absl::string_view device, uint32_t queue_pair);
  // Fails the k-th request posted from now on, counted from 0. `landed`: its data arrives, as where
  // the acknowledgements are lost.
  void FailRequest(absl::string_view device, uint32_t queue_pair, uint64_t k,
                   ibv_wc_status status = IBV_WC_RETRY_EXC_ERR, bool landed = false);
  // Accepts the next chain up to that request and refuses the rest.
  void RefusePost(absl::string_view device, uint32_t queue_pair, uint32_t accepted, int error);
  void FailRegistrations(absl::string_view device, const RegistrationFault& fault);
  // Makes the next `count` calls of ibv_dereg_mr fail. The keys stay valid.
  void FailDeregistrations(absl::string_view device, uint32_t count);
  // Overflows the completion queue of a queue pair, which dies.
  void Overrun(absl::string_view device, uint32_t queue_pair, Direction direction);
  // Adds a completion without a request to the completion queue of a queue pair.
  void AddCompletion(absl::string_view device, uint32_t queue_pair, Direction direction,
                     const ibv_wc& done);
  void DuplicateCompletions(absl::string_view device, bool duplicate);

  // --- for assertions ---

  DeviceCounts counts(absl::string_view device) const;
  // Returns the time that calls of this thread, or of all others, have taken on a device.
  absl::Duration busy(absl::string_view device, bool of_this_thread) const;
  std::vector<uint32_t> queue_pairs(absl::string_view device) const;  // Sorted numbers.
  // Returns the number of completions that were not polled, in the queue of a queue pair.
  size_t unpolled(absl::string_view device, uint32_t queue_pair, Direction direction) const;
  // Returns what peers may do by a queue pair (IBV_ACCESS_REMOTE_*).
  unsigned access(absl::string_view device, uint32_t queue_pair) const;
  std::optional<Registration> newest_registration(absl::string_view device) const;

  // --- libibverbs ---

  ibv_device** GetDeviceList(int* count) override;
  void FreeDeviceList(ibv_device** list) override;
  const char* GetDeviceName(ibv_device* device) override;
  ibv_context* OpenDevice(ibv_device* device) override;
  int CloseDevice(ibv_context* context) override;
  int QueryDevice(ibv_context* context, ibv_device_attr* attributes) override;
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) override;
  int QueryGid(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* gid) override;
  bool IsOwnGid(const ibv_gid_entry& gid) override;
  int QueryPkey(ibv_context* context, uint8_t port, int index, __be16* key) override;
  int GetAsyncEvent(ibv_context* context, ibv_async_event* event) override;
  void AckAsyncEvent(ibv_async_event* event) override;
  ibv_pd* AllocPd(ibv_context* context) override;
  int DeallocPd(ibv_pd* pd) override;
  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t size, unsigned access) override;
  // The memory behind the descriptor is the memory at `address`.
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t size, uint64_t address, int fd,
                      int access) override;
  int DeregMr(ibv_mr* mr) override;
  ibv_comp_channel* CreateCompChannel(ibv_context* context) override;
  int DestroyCompChannel(ibv_comp_channel* channel) override;
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override;
  void AckCqEvents(ibv_cq* cq, unsigned count) override;
  ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) override;
  int DestroyCq(ibv_cq* cq) override;
  int ReqNotifyCq(ibv_cq* cq) override;
  int PollCq(ibv_cq* cq, int count, ibv_wc* completions) override;
  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) override;
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override;
  int DestroyQp(ibv_qp* qp) override;
  int PostSend(ibv_qp* qp, ibv_send_wr* chain, ibv_send_wr** bad) override;
  int PostRecv(ibv_qp* qp, ibv_recv_wr* chain, ibv_recv_wr** bad) override;
  const char* StatusText(ibv_wc_status status) override;
  const char* EventText(ibv_event_type type) override;

  // Called by FakeNetwork, which holds the wire's lock.
  Device& device(absl::string_view name) const;

 private:
  QueuePair& FindQueuePair(absl::string_view device, uint32_t number) const;
  CompletionQueue& FindQueue(absl::string_view device, uint32_t number, Direction direction) const;
  // Records a new object and returns it. Null stays null.
  template <typename Object>
  Object* Made(Object* object);

  Wire& wire_;
  std::vector<Device*> devices_;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_FAKE_HOST_H_
