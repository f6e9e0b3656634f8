// SPDX-License-Identifier: Apache-2.0

// Reads by a NIC of what it has written itself.
#ifndef WAYBILL_CORE_FABRIC_VERBS_READ_BACK_H_
#define WAYBILL_CORE_FABRIC_VERBS_READ_BACK_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/fabric/shared_pages.h"
#include "core/fabric/verbs/device.h"
#include "core/fabric/verbs/queue_pair.h"
#include "core/fabric/verbs/verbs.h"

namespace waybill::verbs {

// A queue pair that a NIC has with itself, and a byte of host memory for what it reads.
class ReadBack {
 public:
  // The NIC outlives it. kResourceExhausted, kUnavailable: the device gives no queue pair.
  static absl::StatusOr<std::unique_ptr<ReadBack>> Create(Verbs* verbs, Nic* nic);
  ~ReadBack();
  ReadBack(const ReadBack&) = delete;
  ReadBack& operator=(const ReadBack&) = delete;

  // Returns when the NIC has read the byte at `address` of memory whose registration has the key
  // and allows remote reads. No read passes the writes that the NIC made before it (PCI Express
  // Base Specification, Transaction Ordering), so these are in memory then.
  //
  // kUnavailable: the NIC reports an error; kDeadlineExceeded: it does not answer in time. This
  // object must not be used any more then.
  absl::Status Read(uint64_t address, uint32_t remote_key, absl::Time deadline);

 private:
  ReadBack(Verbs* verbs, Nic* nic, SharedPages pages)
      : verbs_(*verbs), nic_(*nic), pages_(std::move(pages)) {}
  absl::Status Make();

  Verbs& verbs_;
  Nic& nic_;
  SharedPages pages_;
  ibv_mr* registration_ = nullptr;
  ibv_cq* completions_ = nullptr;
  std::unique_ptr<QueuePair> queue_pair_;
};

}  // namespace waybill::verbs

#endif  // WAYBILL_CORE_FABRIC_VERBS_READ_BACK_H_
