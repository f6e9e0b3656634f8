// SPDX-License-Identifier: Apache-2.0

// An update as the C ABI's user sees it: what is published can be cancelled, and what comes with an
// event answered.
#ifndef WAYBILL_CAPI_UPDATE_H_
#define WAYBILL_CAPI_UPDATE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "capi/object.h"
#include "capi/waybill.h"

namespace waybill::capi {

class Update : public Object {
 public:
  using Handle = waybill_update_t;
  static constexpr Kind kKind = Kind::kUpdate;

  // Passes the user's answer to the rank.
  using Answer = std::function<void(const absl::Status&)>;

  // Makes the update of a publish, which `cancel` gives up. `refuse` does so with a reason until it
  // is decided; null if the version does not wait for its word.
  Update(uint64_t version, std::function<void()> cancel, Answer refuse)
      : version_(version), cancel_(std::move(cancel)), refuse_(std::move(refuse)) {}
  // Makes the update of an event.
  explicit Update(uint64_t version) : version_(version) {}

  uint64_t version() const { return version_; }

  // Cancels a publish. kInvalidArgument: the update is an event's.
  absl::Status Cancel();

  // Asks the rank's user to answer the notice `event`, a WAYBILL_EVENT_*.
  void Ask(uint32_t event, Answer answer);
  absl::Status GiveAnswer(uint32_t event, const absl::Status& answer);

 private:
  const uint64_t version_;
  const std::function<void()> cancel_;  // Null for the update of an event.
  const Answer refuse_;
  std::mutex mutex_;
  std::array<Answer, 3> asked_;  // PREPARE, ARRIVED, COMMIT.
};

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_UPDATE_H_
