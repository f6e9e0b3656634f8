// SPDX-License-Identifier: Apache-2.0

// The size of each struct in the first release that had it, which is the smallest size to accept.
#ifndef WAYBILL_CAPI_FIRST_SIZES_H_
#define WAYBILL_CAPI_FIRST_SIZES_H_

#include <cstddef>

#include "capi/waybill.h"

namespace waybill::capi {

template <typename T>
inline constexpr size_t kFirstSize = 0;
#define WAYBILL_FIRST_SIZE(type, bytes) \
  template <>                           \
  inline constexpr size_t kFirstSize<type> = bytes

// ABI 0.1. These never change.
WAYBILL_FIRST_SIZE(waybill_context_options_t, 24);
WAYBILL_FIRST_SIZE(waybill_event_t, 80);
WAYBILL_FIRST_SIZE(waybill_region_options_t, 40);
WAYBILL_FIRST_SIZE(waybill_quantisation_t, 56);
WAYBILL_FIRST_SIZE(waybill_shard_t, 80);
WAYBILL_FIRST_SIZE(waybill_padding_t, 48);
WAYBILL_FIRST_SIZE(waybill_layout_options_t, 32);
WAYBILL_FIRST_SIZE(waybill_plan_options_t, 40);
WAYBILL_FIRST_SIZE(waybill_plan_summary_t, 72);
WAYBILL_FIRST_SIZE(waybill_controller_options_t, 56);
WAYBILL_FIRST_SIZE(waybill_rank_options_t, 96);
WAYBILL_FIRST_SIZE(waybill_progress_t, 192);
WAYBILL_FIRST_SIZE(waybill_trainer_options_t, 56);
WAYBILL_FIRST_SIZE(waybill_publish_options_t, 48);
WAYBILL_FIRST_SIZE(waybill_worker_options_t, 56);
WAYBILL_FIRST_SIZE(waybill_worker_state_t, 56);

#undef WAYBILL_FIRST_SIZE

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_FIRST_SIZES_H_
