// SPDX-License-Identifier: Apache-2.0

// How evenly a plan loads the links of its ranks.
#ifndef WAYBILL_CORE_PLAN_BALANCE_H_
#define WAYBILL_CORE_PLAN_BALANCE_H_

namespace waybill {

// Loads are bytes divided by link speed, in seconds; if no rank declares a speed, in bytes.
struct Balance {
  double busiest_sender = 0;
  double busiest_receiver = 0;
  double mean_sender = 0;
  // The busiest load is at least this, however sources are assigned.
  double lower_bound = 0;

  double busiest() const {
    return busiest_sender > busiest_receiver ? busiest_sender : busiest_receiver;
  }
  // Returns busiest() over the lower bound. 1 is perfect.
  double ratio() const { return lower_bound > 0 ? busiest() / lower_bound : 1; }
  // Returns the busiest sender's load over the mean, the figure that other systems publish.
  double sender_imbalance() const { return mean_sender > 0 ? busiest_sender / mean_sender : 1; }
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_BALANCE_H_
