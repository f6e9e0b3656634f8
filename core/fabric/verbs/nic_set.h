// SPDX-License-Identifier: Apache-2.0

// The NICs that a fabric uses: opened, looked after, and given up when their device says so.
#ifndef WAYBILL_CORE_FABRIC_VERBS_NIC_SET_H_
#define WAYBILL_CORE_FABRIC_VERBS_NIC_SET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/fabric/fabric.h"
#include "core/fabric/verbs/completion_queues.h"
#include "core/fabric/verbs/connector.h"
#include "core/fabric/verbs/device.h"
#include "core/fabric/verbs/probe_memory.h"
#include "core/fabric/verbs/read_back.h"
#include "core/fabric/verbs/verbs.h"

namespace waybill::verbs {

struct UsedNic {
  Nic nic;
  std::unique_ptr<CompletionQueues> queues;
  std::unique_ptr<ProbeMemory> probes;
  std::unique_ptr<Connector> connector;
  std::optional<uint32_t> gid_index;  // The one that the user named.
  size_t device_index = 0;            // Into devices().
  uint32_t lanes = 0;                 // Open ones.
  uint32_t unproved = 0;              // Those of them that are not connected yet, nor failed.
  uint64_t arrived = 0;               // The number of immediates that have come by this NIC,
  uint64_t read_back = 0;             // and how many of them had come when it read back last.
  std::unique_ptr<ReadBack> reader;   // Null if nothing was to be read back so far.
};

// An asynchronous event of a device, and whom it concerns.
struct NicTrouble {
  const UsedNic* nic = nullptr;        // All lanes on it,
  const CqPair* queues = nullptr;      // or those whose completions come there,
  const ibv_qp* queue_pair = nullptr;  // or the one of that queue pair.
  absl::Status status;
};

class NicSet {
 public:
  // Opens the named ports, or all that are active where none is named. See VerbsOptions::nics.
  // The rail of a port is its place in `names`, or its place among all ports of this host, active
  // or not, in the order of their names.
  static absl::StatusOr<std::unique_ptr<NicSet>> Open(Verbs* verbs,
                                                      const std::vector<std::string>& names,
                                                      std::optional<uint32_t> gid_index);

  // Uses no others from now on. Rails stay as they are.
  void KeepOnly(const std::vector<std::string>& names);

  std::vector<Device*> devices() const;
  const std::vector<std::unique_ptr<UsedNic>>& nics() const { return nics_; }
  // The one of that name, or where it is empty the one that has the fewest lanes.
  // kUnavailable: it is dead, or all are; why.
  absl::StatusOr<UsedNic*> Choose(absl::string_view name);
  std::vector<FabricNic> Usable() const;

  // Calls `report` for what the devices have told since, and takes NICs out and in again.
  void TakeEvents(const std::function<void(const NicTrouble&)>& report);

 private:
  struct NamedNic {
    std::string name;
    std::optional<uint32_t> gid_index;
  };
  static absl::StatusOr<NamedNic> ParseName(absl::string_view text,
                                            std::optional<uint32_t> gid_index);

  explicit NicSet(Verbs* verbs) : verbs_(*verbs) {}
  // Adds the ports of a device that are among `named`, or all if none is named.
  absl::Status Add(size_t device_index, uint32_t first_rail, const std::vector<NamedNic>& named,
                   std::optional<uint32_t> gid_index, std::vector<std::string>& reasons);
  void TakeEvent(Device& device, const ibv_async_event& event,
                 const std::function<void(const NicTrouble&)>& report);

  Verbs& verbs_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<UsedNic>> nics_;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_NIC_SET_H_
