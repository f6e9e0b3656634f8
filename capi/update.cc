// SPDX-License-Identifier: Apache-2.0

#include "capi/update.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "capi/call.h"

namespace waybill::capi {

absl::Status Update::Cancel() {
  if (!cancel_) {
    return absl::InvalidArgumentError(
        absl::StrCat("version ", version_, " is the update of an event: refuse it instead"));
  }
  cancel_();
  return absl::OkStatus();
}

void Update::Ask(uint32_t event, Answer answer) {
  const std::lock_guard lock(mutex_);
  asked_[event - WAYBILL_EVENT_PREPARE] = std::move(answer);
}

absl::Status Update::GiveAnswer(uint32_t event, const absl::Status& answer) {
  if (cancel_) {
    if (refuse_ && event == WAYBILL_EVENT_ARRIVED && !answer.ok()) {
      refuse_(answer);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("version ", version_,
                     " is what was published, which asks nothing: answer the update of the event"));
  }
  if (event < WAYBILL_EVENT_PREPARE || event > WAYBILL_EVENT_COMMIT) {
    return absl::InvalidArgumentError(
        absl::StrCat("event ", event, " is not one of PREPARE, ARRIVED, COMMIT"));
  }
  Answer give;
  {
    const std::lock_guard lock(mutex_);
    give = std::exchange(asked_[event - WAYBILL_EVENT_PREPARE], nullptr);
  }
  if (!give) {
    return absl::FailedPreconditionError(
        absl::StrCat("version ", version_, ": event ", event,
                     " was answered, or did not ask (answer_wanted, and the worker's `ask`)"));
  }
  give(answer);
  return absl::OkStatus();
}

}  // namespace waybill::capi

using waybill::capi::Call;
using waybill::capi::CallOn;
using waybill::capi::Find;
using waybill::capi::FindObject;
using waybill::capi::Update;

uint64_t waybill_update_version(const waybill_update_t* update) {
  const auto found = FindObject<Update>(update);
  return found == nullptr ? 0 : found->version();
}

waybill_status_t waybill_update_accept(waybill_update_t* update, uint32_t event,
                                       waybill_error_t** error) {
  return CallOn<Update>("accept an update", update, "update", error,
                        [&](Update& found) { return found.GiveAnswer(event, absl::OkStatus()); });
}

waybill_status_t waybill_update_refuse(waybill_update_t* update, uint32_t event, const char* reason,
                                       waybill_error_t** error) {
  return Call("refuse an update", error, [&]() -> absl::Status {
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<Update>(update, "update"));
    WAYBILL_ASSIGN_OR_RETURN(const std::string why, waybill::capi::Text(reason, "reason"));
    return found->GiveAnswer(event, absl::FailedPreconditionError(why));
  });
}

waybill_status_t waybill_update_cancel(waybill_update_t* update, waybill_error_t** error) {
  return CallOn<Update>("cancel an update", update, "update", error,
                        [&](Update& found) { return found.Cancel(); });
}

void waybill_update_destroy(waybill_update_t* update) {
  waybill::capi::DestroyObject<Update>(update);
}
