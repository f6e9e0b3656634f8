// SPDX-License-Identifier: Apache-2.0

// Holds the sockets that have connected and have not said which lane they want. Bounds their number
// and their time.
#ifndef WAYBILL_CORE_FABRIC_LOCAL_STRANGERS_H_
#define WAYBILL_CORE_FABRIC_LOCAL_STRANGERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/unique_fd.h"

namespace waybill::local {

class Strangers {
 public:
  Strangers(absl::Duration patience, size_t most) : patience_(patience), most_(most) {}

  absl::Status Start();
  // Readable when it is time for Expire().
  int timer() const { return timer_.get(); }

  // Takes in a socket. If there are too many, the one who has waited longest is closed: whoever
  // means it says so at once.
  void Add(UniqueFd socket);
  bool Has(int socket) const;
  // Hands the socket over. It must be there.
  UniqueFd Take(int socket);
  // Closes those whose time is over.
  void Expire();

  uint64_t silent_count() const { return silent_; }

 private:
  struct Stranger {
    UniqueFd socket;
    absl::Time deadline;
  };

  void CloseOldest();
  void ArmTimer();

  const absl::Duration patience_;
  const size_t most_;
  UniqueFd timer_;
  std::deque<Stranger> strangers_;  // The oldest one first.
  uint64_t silent_ = 0;             // Closed before they had said anything.
};

}  // namespace waybill::local

#endif  // WAYBILL_CORE_FABRIC_LOCAL_STRANGERS_H_
