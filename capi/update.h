// One version on its way: what a trainer's user can cancel, and a worker's answers.
#ifndef WAYBILL_CAPI_UPDATE_H_
#define WAYBILL_CAPI_UPDATE_H_

#include <array>
#include <cstdint>
#include <mutex>
#include <stop_token>

#include "absl/status/status.h"
#include "capi/object.h"
#include "capi/waybill.h"
#include "core/control/worker.h"

namespace waybill::capi {

class Update : public Object {
 public:
  using Handle = waybill_update_t;
  static constexpr Kind kKind = Kind::kUpdate;
  enum class Role { kOfTrainer, kOfWorker };

  Update(Role role, uint64_t version) : role_(role), version_(version) {}

  uint64_t version() const { return version_; }

  // --- a trainer's ---

  absl::Status Cancel();
  void RequestStop() { stop_.request_stop(); }
  std::stop_token stop_token() const { return stop_.get_token(); }

  // --- a worker's ---

  // The user is to answer the notice of that WAYBILL_EVENT_*.
  void Ask(uint32_t event, WorkerOptions::Answer answer);
  absl::Status GiveAnswer(uint32_t event, const absl::Status& answer);

 private:
  const Role role_;
  const uint64_t version_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::array<WorkerOptions::Answer, 3> asked_;  // PREPARE, ARRIVED, COMMIT.
};

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_UPDATE_H_
