// One word that both ends of a lane map: whether the peer may still read memory of this end. The
// socket cannot tell: what was posted stays in it when it is closed, and would be copied late.
#ifndef WAYBILL_CORE_FABRIC_LOCAL_READ_PERMIT_H_
#define WAYBILL_CORE_FABRIC_LOCAL_READ_PERMIT_H_

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"
#include "core/fabric/shared_pages.h"

namespace waybill::local {

class ReadPermit {
 public:
  // Of this end, for the peer.
  static absl::StatusOr<ReadPermit> Create();
  // The peer's, for this end.
  static absl::StatusOr<ReadPermit> FromPeer(UniqueFd fd);

  int fd() const { return pages_.fd(); }

  // The reader: between these two the owner's memory stays as it is. False: it was taken back.
  bool BeginReading();
  void EndReading();

  // The owner: when it returns the peer does not read and will not. `socket` tells of a peer that
  // died while it was reading.
  void TakeBack(int socket);

 private:
  explicit ReadPermit(SharedPages pages) : pages_(std::move(pages)) {}
  std::atomic<uint32_t>& word() { return *reinterpret_cast<std::atomic<uint32_t>*>(pages_.data()); }

  SharedPages pages_;
};

}  // namespace waybill::local

#endif  // WAYBILL_CORE_FABRIC_LOCAL_READ_PERMIT_H_
