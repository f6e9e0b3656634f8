// SPDX-License-Identifier: Apache-2.0

// How evenly a plan loads the links of its ranks.
#ifndef WAYBILL_CORE_PLAN_BALANCE_H_
#define WAYBILL_CORE_PLAN_BALANCE_H_

namespace waybill {

// Loads are bytes over link speed, in seconds; where no rank declares a speed, in bytes.
struct Balance {
  double busiest_trainer = 0;
  double busiest_worker = 0;
  double mean_trainer = 0;
  // No assignment of sources can end earlier than this.
  double lower_bound = 0;

  double busiest() const {
    return busiest_trainer > busiest_worker ? busiest_trainer : busiest_worker;
  }
  // 1 is perfect.
  double ratio() const { return lower_bound > 0 ? busiest() / lower_bound : 1; }
  // The figure that others publish: the busiest trainer over the mean.
  double trainer_imbalance() const { return mean_trainer > 0 ? busiest_trainer / mean_trainer : 1; }
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_BALANCE_H_
