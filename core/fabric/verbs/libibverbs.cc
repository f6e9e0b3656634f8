// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/libibverbs.h"

#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waybill::verbs {
namespace {

constexpr char kLibrary[] = "libibverbs.so.1";

// What is resolved by name. The rest (post, poll, arm) has no symbol: providers fill it into the
// context, and the header's inline functions call it there.
struct Symbols {
  decltype(&::ibv_get_device_list) get_device_list;
  decltype(&::ibv_free_device_list) free_device_list;
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_open_device) open_device;
  decltype(&::ibv_close_device) close_device;
  decltype(&::ibv_query_device) query_device;
  decltype(&::_ibv_query_gid_ex) query_gid_ex;
  decltype(&::ibv_query_pkey) query_pkey;
  decltype(&::ibv_get_async_event) get_async_event;
  decltype(&::ibv_ack_async_event) ack_async_event;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  decltype(&::ibv_reg_mr_iova2) reg_mr_iova2;
  decltype(&::ibv_reg_dmabuf_mr) reg_dmabuf_mr;
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_create_comp_channel) create_comp_channel;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel;
  decltype(&::ibv_get_cq_event) get_cq_event;
  decltype(&::ibv_ack_cq_events) ack_cq_events;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_destroy_cq) destroy_cq;
  decltype(&::ibv_create_qp) create_qp;
  decltype(&::ibv_modify_qp) modify_qp;
  decltype(&::ibv_destroy_qp) destroy_qp;
  decltype(&::ibv_wc_status_str) wc_status_str;
  decltype(&::ibv_event_type_str) event_type_str;
};

class Libibverbs final : public Verbs {
 public:
  explicit Libibverbs(const Symbols& symbols) : s_(symbols) {}

  ibv_device** GetDeviceList(int* count) override { return s_.get_device_list(count); }
  void FreeDeviceList(ibv_device** list) override { s_.free_device_list(list); }
  const char* GetDeviceName(ibv_device* device) override { return s_.get_device_name(device); }
  ibv_context* OpenDevice(ibv_device* device) override { return s_.open_device(device); }
  int CloseDevice(ibv_context* context) override { return s_.close_device(context); }
  int QueryDevice(ibv_context* context, ibv_device_attr* attributes) override {
    return s_.query_device(context, attributes);
  }
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) override {
    // The symbol of that name fills in an older and shorter struct.
    const verbs_context* extended = verbs_get_ctx_op(context, query_port);
    if (extended == nullptr) return ENOSYS;
    *attributes = {};
    return extended->query_port(context, port, attributes, sizeof(*attributes));
  }
  int QueryGid(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* gid) override {
    return s_.query_gid_ex(context, port, index, gid, 0, sizeof(*gid));
  }
  bool IsOwnGid(const ibv_gid_entry& gid) override { return IsOfOwnNamespace(gid); }
  int QueryPkey(ibv_context* context, uint8_t port, int index, __be16* key) override {
    return s_.query_pkey(context, port, index, key);
  }
  int GetAsyncEvent(ibv_context* context, ibv_async_event* event) override {
    return s_.get_async_event(context, event);
  }
  void AckAsyncEvent(ibv_async_event* event) override { s_.ack_async_event(event); }

  ibv_pd* AllocPd(ibv_context* context) override { return s_.alloc_pd(context); }
  int DeallocPd(ibv_pd* pd) override { return s_.dealloc_pd(pd); }
  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t size, unsigned access) override {
    return s_.reg_mr_iova2(pd, address, size, reinterpret_cast<uintptr_t>(address), access);
  }
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t size, uint64_t address, int fd,
                      int access) override {
    return s_.reg_dmabuf_mr(pd, offset, size, address, fd, access);
  }
  int DeregMr(ibv_mr* mr) override { return s_.dereg_mr(mr); }

  ibv_comp_channel* CreateCompChannel(ibv_context* context) override {
    return s_.create_comp_channel(context);
  }
  int DestroyCompChannel(ibv_comp_channel* channel) override {
    return s_.destroy_comp_channel(channel);
  }
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override {
    void* unused = nullptr;
    return s_.get_cq_event(channel, cq, &unused);
  }
  void AckCqEvents(ibv_cq* cq, unsigned count) override { s_.ack_cq_events(cq, count); }
  ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) override {
    return s_.create_cq(context, entries, nullptr, channel, 0);
  }
  int DestroyCq(ibv_cq* cq) override { return s_.destroy_cq(cq); }
  int ReqNotifyCq(ibv_cq* cq) override { return ::ibv_req_notify_cq(cq, 0); }
  int PollCq(ibv_cq* cq, int count, ibv_wc* completions) override {
    return ::ibv_poll_cq(cq, count, completions);
  }

  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) override {
    return s_.create_qp(pd, attributes);
  }
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override {
    return s_.modify_qp(qp, attributes, mask);
  }
  int DestroyQp(ibv_qp* qp) override { return s_.destroy_qp(qp); }
  int PostSend(ibv_qp* qp, ibv_send_wr* chain, ibv_send_wr** bad) override {
    return ::ibv_post_send(qp, chain, bad);
  }
  int PostRecv(ibv_qp* qp, ibv_recv_wr* chain, ibv_recv_wr** bad) override {
    return ::ibv_post_recv(qp, chain, bad);
  }

  const char* StatusText(ibv_wc_status status) override { return s_.wc_status_str(status); }
  const char* EventText(ibv_event_type type) override { return s_.event_type_str(type); }

 private:
  const Symbols s_;
};

class Resolver {
 public:
  explicit Resolver(void* library) : library_(library) {}

  template <typename Function>
  void Get(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr && missing_ == nullptr) missing_ = name;
  }
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

absl::StatusOr<std::unique_ptr<Verbs>> Load() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return absl::UnavailableError(
        absl::StrCat("RDMA is not available: ", why == nullptr ? kLibrary : why,
                     "; install libibverbs1 and ibverbs-providers (rdma-core)"));
  }
  Symbols s;
  Resolver r(library);
  r.Get("ibv_get_device_list", s.get_device_list);
  r.Get("ibv_free_device_list", s.free_device_list);
  r.Get("ibv_get_device_name", s.get_device_name);
  r.Get("ibv_open_device", s.open_device);
  r.Get("ibv_close_device", s.close_device);
  r.Get("ibv_query_device", s.query_device);
  r.Get("_ibv_query_gid_ex", s.query_gid_ex);
  r.Get("ibv_query_pkey", s.query_pkey);
  r.Get("ibv_get_async_event", s.get_async_event);
  r.Get("ibv_ack_async_event", s.ack_async_event);
  r.Get("ibv_alloc_pd", s.alloc_pd);
  r.Get("ibv_dealloc_pd", s.dealloc_pd);
  r.Get("ibv_reg_mr_iova2", s.reg_mr_iova2);
  r.Get("ibv_reg_dmabuf_mr", s.reg_dmabuf_mr);
  r.Get("ibv_dereg_mr", s.dereg_mr);
  r.Get("ibv_create_comp_channel", s.create_comp_channel);
  r.Get("ibv_destroy_comp_channel", s.destroy_comp_channel);
  r.Get("ibv_get_cq_event", s.get_cq_event);
  r.Get("ibv_ack_cq_events", s.ack_cq_events);
  r.Get("ibv_create_cq", s.create_cq);
  r.Get("ibv_destroy_cq", s.destroy_cq);
  r.Get("ibv_create_qp", s.create_qp);
  r.Get("ibv_modify_qp", s.modify_qp);
  r.Get("ibv_destroy_qp", s.destroy_qp);
  r.Get("ibv_wc_status_str", s.wc_status_str);
  r.Get("ibv_event_type_str", s.event_type_str);
  if (r.missing() != nullptr) {
    return absl::UnavailableError(absl::StrCat("RDMA is not available: ", kLibrary, " has no ",
                                               r.missing(), "; rdma-core 34 or later is needed"));
  }
  return std::make_unique<Libibverbs>(s);
}

}  // namespace

bool IsOfOwnNamespace(const ibv_gid_entry& gid) {
  if (gid.gid_type == IBV_GID_TYPE_IB) return true;
  in6_addr address;
  std::memcpy(&address, gid.gid.raw, sizeof(address));
  if (IN6_IS_ADDR_LINKLOCAL(&address)) {
    // Made from the port, whether its interface has such an address or not. A number may be of
    // interfaces in several namespaces.
    std::array<char, IF_NAMESIZE> name;
    return gid.ndev_ifindex == 0 || if_indextoname(gid.ndev_ifindex, name.data()) != nullptr;
  }
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return true;
  bool found = false;
  for (const ifaddrs* a = list; a != nullptr && !found; a = a->ifa_next) {
    if (a->ifa_addr == nullptr) continue;
    if (a->ifa_addr->sa_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(a->ifa_addr);
      found = std::memcmp(&v6->sin6_addr, &address, sizeof(address)) == 0;
    } else if (a->ifa_addr->sa_family == AF_INET && IN6_IS_ADDR_V4MAPPED(&address)) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(a->ifa_addr);
      found = std::memcmp(&v4->sin_addr, &address.s6_addr[12], sizeof(v4->sin_addr)) == 0;
    }
  }
  freeifaddrs(list);
  return found;
}

absl::StatusOr<Verbs*> LoadLibibverbs() {
  // Never unloaded: providers leave threads and handlers behind.
  static const auto* loaded = new absl::StatusOr<std::unique_ptr<Verbs>>(Load());
  if (!loaded->ok()) return loaded->status();
  return (*loaded)->get();
}

}  // namespace waybill::verbs
