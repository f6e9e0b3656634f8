// SPDX-License-Identifier: Apache-2.0

// The regions of one verbs endpoint: registered with each device, known to peers by a key of our
// own, renewed by registering anew. One for which there is no room any more stays unregistered: it
// is written to, and from, by way of the lanes' bounce rings.
#ifndef WAYBILL_CORE_FABRIC_VERBS_REGIONS_H_
#define WAYBILL_CORE_FABRIC_VERBS_REGIONS_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/fabric/fabric.h"
#include "core/fabric/shared_pages.h"
#include "core/fabric/verbs/bounce_ring.h"
#include "core/fabric/verbs/device.h"
#include "core/fabric/verbs/verbs.h"

namespace waybill::verbs {

struct OwnRegion {
  RegionId id = RegionId::kNone;
  MemorySpan memory;
  std::string name;
  std::optional<SharedPages> pages;  // Set if it was allocated here.
  uint64_t key = 0;
  std::vector<ibv_mr*> registrations;  // Indexed by device. Null for a device that had failed.
  std::vector<bool> by_dmabuf;         // How: by a dma-buf, or by address. Indexed alike.
  std::vector<ibv_mr*> stuck;          // Old ones that a device did not give up.
  bool is_source = false;              // Posts read it, and no peer reaches it.
  bool bounced = false;                // It has no registrations, because there was no room.
  std::set<LaneId> grants;
};

struct RegistrationCounts {
  uint64_t registrations = 0;
  uint64_t registered_bytes = 0;      // Registered now.
  absl::Duration time;                // The total time.
  uint64_t unregistered_regions = 0;  // The regions that are bounced now.
  uint64_t delivered_bytes = 0;       // Copied out of rings to bounced regions.
};

class Regions {
 public:
  // The devices outlive it.
  Regions(Verbs* verbs, std::vector<Device*> devices, const BounceLimits& bounce)
      : verbs_(*verbs),
        devices_(std::move(devices)),
        retired_keys_(devices_.size()),
        bounce_limits_(bounce) {}
  ~Regions();

  // kResourceExhausted: there is no room for it, nor for the bounce ring of one lane.
  absl::StatusOr<Region> Register(const MemorySpan& memory, absl::string_view name);
  // The same, but what there is no room for is not bounced: it is kResourceExhausted.
  absl::StatusOr<Region> RegisterSource(const MemorySpan& memory, absl::string_view name);
  absl::StatusOr<Region> Allocate(uint64_t size_bytes, absl::string_view name);
  // kInternal: a device does not give up the region's keys. Then the region stays, and its memory
  // must not be freed.
  absl::Status Release(RegionId id);
  // When it returns OK, no device accepts the old keys, and nothing more lands by them.
  //
  // kInternal: a device does not give up the old keys, or gives no others. Then nobody can use the
  // region until a later Renew() has succeeded.
  absl::Status Renew(RegionId id, Contents contents);

  // kNotFound: no such region.
  absl::StatusOr<OwnRegion*> Find(RegionId id);
  // kFailedPrecondition: it could not be registered anew when it was renewed last.
  absl::StatusOr<OwnRegion*> FindUsable(RegionId id);
  // A piece that came by the ring of a lane, to where it belongs. kPermissionDenied: no region that
  // is bounced has that key, or the lane was not granted it. kOutOfRange: it does not lie within
  // it.
  absl::Status Deliver(LaneId lane, const BouncedHeader& header, const std::byte* data);
  void ForgetLane(LaneId lane);

  // A byte of registered memory.
  struct Byte {
    uint64_t address = 0;
    uint32_t remote_key = 0;
  };
  // Returns what a device has to read so that all memory that `needs_read_back` has what the device
  // wrote there: a byte of what is registered by dma-bufs, and one of what is by address. A GPU
  // that is coherent with the CPU may be reached in two ways, which are not ordered.
  std::array<std::optional<Byte>, 2> ToReadBack(size_t device) const;

  const RegistrationCounts& counts() const { return counts_; }
  std::vector<FabricCount> Counts() const;  // The same, for operators.
  // Why the first of those that are bounced now is; empty where none is.
  absl::string_view why_bounced() const;
  // Returns how the memory of devices was registered last, and why not in the better way; empty if
  // none was.
  absl::string_view device_path() const { return device_path_; }

 private:
  absl::StatusOr<Region> Add(OwnRegion region);
  absl::Status RegisterWithDevices(OwnRegion& region);
  // Why a registration was refused; 0: it was not tried.
  struct Refusal {
    int by_dmabuf = 0;
    int by_address = 0;
  };
  static absl::Status ErrorOf(const OwnRegion& region, const Device& device,
                              const Refusal& refusal);
  // What came of registering a region with a device.
  struct Attempt {
    const Device* device = nullptr;  // Null: it has failed, and was not asked.
    ibv_mr* mr = nullptr;            // Null: it was refused.
    Refusal refusal;
    std::vector<ibv_mr*> held;  // What was registered under keys that it must not have.
    std::string path;           // See device_path().
  };
  // Asks all devices at once. Returns an attempt for each.
  std::vector<Attempt> TryDevices(const OwnRegion& region);
  // Registers under a key by which no living lane could have been allowed to write to this memory
  // before. [any thread, one for each device]
  void RegisterUnderNewKey(size_t device, const OwnRegion& region, Attempt& attempt) const;
  // Returns null if it is refused.
  ibv_mr* RegisterWith(const OwnRegion& region, Attempt& attempt) const;
  // Bounces a region that had no room, if there is room for rings.
  absl::Status Bounce(OwnRegion& region, const absl::Status& why);
  // Both: kInternal if a device says no. The registration is kept in `stuck`.
  absl::Status DeregisterOne(OwnRegion& region, ibv_mr* mr);
  absl::Status Deregister(OwnRegion& region);

  // A remote key that lanes were granted and that is not valid any more.
  struct RetiredKey {
    // What it has opened, and everything between.
    uint64_t begin = 0;
    uint64_t end = 0;
    std::set<LaneId> lanes;  // That may still have writes with it under way.
  };
  // Ends the grants of the region, and remembers its keys.
  void RetireKeys(OwnRegion& region);

  Verbs& verbs_;
  const std::vector<Device*> devices_;
  std::vector<absl::flat_hash_map<uint32_t, RetiredKey>> retired_keys_;  // Indexed by device.
  const BounceLimits bounce_limits_;
  uint32_t last_id_ = 0;
  std::map<RegionId, OwnRegion> regions_;
  std::unordered_map<uint64_t, RegionId> bounced_;  // By key: a peer tells it with each piece.
  std::string why_bounced_;
  std::string device_path_;
  RegistrationCounts counts_;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_REGIONS_H_
