// SPDX-License-Identifier: Apache-2.0

// A simulated NIC: its ports, and the objects that programs have made on it.
#ifndef WAYBILL_TESTING_FAKE_VERBS_DEVICE_H_
#define WAYBILL_TESTING_FAKE_VERBS_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "testing/fake_verbs/completion_queue.h"
#include "testing/fake_verbs/device_options.h"
#include "testing/fake_verbs/event_queue.h"
#include "testing/fake_verbs/memory.h"
#include "testing/fake_verbs/queue_pair.h"

namespace waybill::fake_verbs {

class Wire;

// The number of the interface of GIDs in other network namespaces.
constexpr uint32_t kForeignInterface = 1;

struct Port {
  PortOptions options;
  bool active = true;
  uint16_t lid = 0;  // 0 on Ethernet.
  std::vector<GidRow> gids;
};

// Counts of the calls on a device and of the objects that are alive on it.
struct DeviceCounts {
  uint64_t post_send_calls = 0;
  uint64_t requests = 0;
  uint64_t signalled = 0;
  uint64_t reads = 0;
  size_t contexts = 0;
  size_t protection_domains = 0;
  size_t registrations = 0;
  size_t completion_queues = 0;
  size_t queue_pairs = 0;
};

struct Context : ibv_context {
  EventQueue<ibv_async_event> events;
  uint32_t users = 0;  // Living objects that were made in it.
};

struct ProtectionDomain : ibv_pd {
  uint32_t users = 0;
};

class Device : public ibv_device {
 public:
  // `ordinal`: the number of the device on the wire, which decides its addresses and keys.
  Device(Wire* wire, const std::string& name, uint32_t ordinal, const DeviceOptions& options);

  const DeviceOptions& options() const { return options_; }
  bool failed() const { return failed_; }
  DeviceCounts counts() const;
  Memory& memory() { return memory_; }
  const std::map<uint32_t, std::unique_ptr<QueuePair>>& queue_pairs() const { return queue_pairs_; }
  const std::vector<Port>& ports() const { return ports_; }

  // --- the calls of libibverbs; they return null or an errno on failure ---
  ibv_context* Open();
  int Close(ibv_context* context);
  void Query(ibv_device_attr* attributes) const;
  int QueryPort(uint8_t port, ibv_port_attr* attributes) const;
  int QueryGid(uint32_t port, uint32_t index, ibv_gid_entry* gid) const;
  int QueryPkey(uint8_t port, int index, __be16* key) const;
  ibv_pd* AllocatePd(ibv_context* context);
  int FreePd(ibv_pd* pd);
  ibv_mr* Register(ibv_pd* pd, const Range& range, unsigned access);
  int Deregister(ibv_mr* mr);
  ibv_comp_channel* CreateChannel(ibv_context* context);
  int DestroyChannel(ibv_comp_channel* channel);
  ibv_cq* CreateQueue(ibv_context* context, int entries, ibv_comp_channel* channel);
  int DestroyQueue(ibv_cq* cq);
  ibv_qp* CreateQueuePair(ibv_pd* pd, const ibv_qp_init_attr& attributes);
  int DestroyQueuePair(ibv_qp* qp);

  // --- for queue pairs and the wire ---
  // A call takes so long.
  void Spend(absl::Duration time);
  const Port* FindPort(uint8_t number) const;
  // Returns true if a queue pair at that port can reach the destination of the attributes.
  int CheckPath(uint8_t port, const ibv_qp_attr& attributes) const;
  // Pushes a completion. A queue without room dies, and so do the queue pairs that use it.
  void Complete(CompletionQueue* queue, Completion completion);
  void Kill(CompletionQueue* queue);
  void Raise(QueuePair& queue_pair, ibv_event_type type);
  void Count(const SendRequest& request);
  void CountPost() { ++counts_.post_send_calls; }

  // The time that calls of this thread, or of all others, have taken on the device.
  absl::Duration busy(bool of_this_thread) const;

  // --- by script ---
  void SetPort(uint8_t number, bool active);
  void SetGids(uint8_t number, std::vector<GidRow> gids);
  void Fail();
  // Returns null if there is no such queue pair.
  QueuePair* FindQueuePair(uint32_t number) const;
  void DuplicateCompletions(bool duplicate) { duplicates_ = duplicate; }

 private:
  // Returns false if the limit does not allow it.
  bool Lock(uint64_t bytes);
  void RaiseForAll(ibv_async_event event);
  uint32_t NextQueuePairNumber();

  Wire& wire_;
  const DeviceOptions options_;
  std::vector<Port> ports_;
  Memory memory_;
  bool failed_ = false;
  uint64_t locked_bytes_ = 0;
  std::map<std::thread::id, absl::Duration> busy_;
  bool duplicates_ = false;
  uint32_t last_queue_pair_;
  DeviceCounts counts_;
  std::vector<std::unique_ptr<Context>> contexts_;
  std::vector<std::unique_ptr<ProtectionDomain>> protection_domains_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::vector<std::unique_ptr<CompletionQueue>> completion_queues_;
  std::map<uint32_t, std::unique_ptr<QueuePair>> queue_pairs_;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_DEVICE_H_
