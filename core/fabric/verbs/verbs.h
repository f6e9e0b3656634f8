// SPDX-License-Identifier: Apache-2.0

// The part of libibverbs that the fabric uses, as a table: filled in by the library of this host
// (libibverbs.h), or by a simulated NIC (testing/fake_verbs).
//
// Each function is the one of libibverbs of that name, with its contract: pointers are null and
// numbers not 0 where it failed, and why is the errno returned or set.
#ifndef WAYBILL_CORE_FABRIC_VERBS_VERBS_H_
#define WAYBILL_CORE_FABRIC_VERBS_VERBS_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

namespace waybill::verbs {

class Verbs {
 public:
  virtual ~Verbs() = default;

  virtual ibv_device** GetDeviceList(int* count) = 0;
  virtual void FreeDeviceList(ibv_device** list) = 0;
  virtual const char* GetDeviceName(ibv_device* device) = 0;
  virtual ibv_context* OpenDevice(ibv_device* device) = 0;
  virtual int CloseDevice(ibv_context* context) = 0;
  virtual int QueryDevice(ibv_context* context, ibv_device_attr* attributes) = 0;
  virtual int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) = 0;
  virtual int QueryGid(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* gid) = 0;
  // Not of libibverbs: returns false if the GID is of an interface in another network namespace.
  virtual bool IsOwnGid(const ibv_gid_entry& gid) = 0;
  virtual int QueryPkey(ibv_context* context, uint8_t port, int index, __be16* key) = 0;
  virtual int GetAsyncEvent(ibv_context* context, ibv_async_event* event) = 0;
  virtual void AckAsyncEvent(ibv_async_event* event) = 0;

  virtual ibv_pd* AllocPd(ibv_context* context) = 0;
  virtual int DeallocPd(ibv_pd* pd) = 0;
  // With the optional access flags that the device knows; the others are left out by the library.
  virtual ibv_mr* RegMr(ibv_pd* pd, void* address, size_t size, unsigned access) = 0;
  virtual ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t size, uint64_t address, int fd,
                              int access) = 0;
  virtual int DeregMr(ibv_mr* mr) = 0;

  virtual ibv_comp_channel* CreateCompChannel(ibv_context* context) = 0;
  virtual int DestroyCompChannel(ibv_comp_channel* channel) = 0;
  virtual int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) = 0;
  virtual void AckCqEvents(ibv_cq* cq, unsigned count) = 0;
  virtual ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) = 0;
  virtual int DestroyCq(ibv_cq* cq) = 0;
  virtual int ReqNotifyCq(ibv_cq* cq) = 0;
  virtual int PollCq(ibv_cq* cq, int count, ibv_wc* completions) = 0;

  virtual ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) = 0;
  virtual int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = 0;
  virtual int DestroyQp(ibv_qp* qp) = 0;
  virtual int PostSend(ibv_qp* qp, ibv_send_wr* chain, ibv_send_wr** bad) = 0;
  virtual int PostRecv(ibv_qp* qp, ibv_recv_wr* chain, ibv_recv_wr** bad) = 0;

  virtual const char* StatusText(ibv_wc_status status) = 0;
  virtual const char* EventText(ibv_event_type type) = 0;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_VERBS_H_
