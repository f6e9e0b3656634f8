// SPDX-License-Identifier: Apache-2.0

// One word that both ends of a lane map: whether the peer may still read memory of this end. The
// socket cannot tell: what was posted stays in it when it is closed, and would be copied late.
#ifndef WAYBILL_CORE_FABRIC_LOCAL_READ_PERMIT_H_
#define WAYBILL_CORE_FABRIC_LOCAL_READ_PERMIT_H_

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"
#include "core/fabric/shared_pages.h"

namespace waybill::local {

class ReadPermit {
 public:
  // Creates the permit of this end.
  static absl::StatusOr<ReadPermit> Create();
  // Opens the peer's permit.
  static absl::StatusOr<ReadPermit> FromPeer(UniqueFd fd);

  int fd() const { return pages_.fd(); }

  // How long TakeBack() waits for a reader. A read is one write of kMaxWriteBytes at most, or what
  // a GPU copies of kMostFramesAtOnce frames, some milliseconds.
  static constexpr absl::Duration kPatience = absl::Milliseconds(100);

  // For the reader. Returns false if the permit was taken back.
  bool BeginReading();
  // Returns false if the permit was taken back meanwhile: what was read is worth nothing, since the
  // owner may have changed it.
  bool EndReading();

  // For the owner. From its return on, nothing that the peer reads of the owner's memory counts:
  // either the peer does not read, or it is stopped in the middle of a read, which EndReading()
  // makes void when it goes on. Returns false in the latter case, after `patience`. `socket` tells
  // of a peer that died while it was reading.
  bool TakeBack(int socket, absl::Duration patience = kPatience);

 private:
  explicit ReadPermit(SharedPages pages) : pages_(std::move(pages)) {}
  std::atomic<uint32_t>& word() { return *reinterpret_cast<std::atomic<uint32_t>*>(pages_.data()); }

  SharedPages pages_;
};

}  // namespace waybill::local

#endif  // WAYBILL_CORE_FABRIC_LOCAL_READ_PERMIT_H_
