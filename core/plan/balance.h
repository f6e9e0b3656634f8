// SPDX-License-Identifier: Apache-2.0

// How evenly a plan loads the links of its ranks.
#ifndef WAYBILL_CORE_PLAN_BALANCE_H_
#define WAYBILL_CORE_PLAN_BALANCE_H_

namespace waybill {

// Loads are bytes over link speed, in seconds; where no rank declares a speed, in bytes.
struct Balance {
  double busiest_sender = 0;
  double busiest_receiver = 0;
  double mean_sender = 0;
  // No assignment of sources can end earlier than this.
  double lower_bound = 0;

  double busiest() const {
    return busiest_sender > busiest_receiver ? busiest_sender : busiest_receiver;
  }
  // 1 is perfect.
  double ratio() const { return lower_bound > 0 ? busiest() / lower_bound : 1; }
  // The figure that others publish: the busiest sender over the mean.
  double sender_imbalance() const { return mean_sender > 0 ? busiest_sender / mean_sender : 1; }
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_BALANCE_H_
