#include "core/engine/trainer_peer.h"

#include "absl/container/flat_hash_map.h"
#include "core/base/status.h"

namespace waybill {
namespace {

class Opener {
 public:
  Opener(Fabric& fabric, LaneId lane) : fabric_(fabric), lane_(lane) {}

  absl::StatusOr<RegionAccess> Open(const RegionAddress& address) {
    // Regions of one arena share a descriptor: imported and mapped once.
    auto [known, is_new] = opened_.try_emplace(address.descriptor);
    if (is_new) {
      WAYBILL_ASSIGN_OR_RETURN(known->second.remote, fabric_.Import(lane_, address.descriptor));
      const absl::StatusOr<MemorySpan> mapping = fabric_.Map(known->second.remote);
      if (mapping.ok()) {
        known->second.mapped = mapping->data;
      } else if (!absl::IsUnimplemented(mapping.status())) {
        return mapping.status();
      }
    }
    RegionAccess access = known->second;
    access.offset_bytes = address.offset_bytes;
    if (access.mapped != nullptr) access.mapped += address.offset_bytes;
    return access;
  }

 private:
  Fabric& fabric_;
  LaneId lane_;
  absl::flat_hash_map<std::string, RegionAccess> opened_;
};

}  // namespace

absl::StatusOr<BufferAccess> OpenBuffer(Fabric& fabric, LaneId lane, const BufferAddress& address) {
  Opener opener(fabric, lane);
  BufferAccess access;
  access.regions.reserve(address.regions.size());
  for (const RegionAddress& region : address.regions) {
    WAYBILL_ASSIGN_OR_RETURN(RegionAccess opened, opener.Open(region));
    access.regions.push_back(opened);
  }
  WAYBILL_ASSIGN_OR_RETURN(access.ledger, opener.Open({address.ledger, 0}));
  return access;
}

}  // namespace waybill
