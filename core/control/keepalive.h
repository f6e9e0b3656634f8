// SPDX-License-Identifier: Apache-2.0

// The keepalive of control streams, by which each end detects that the other is gone.
#ifndef WAYBILL_CORE_CONTROL_KEEPALIVE_H_
#define WAYBILL_CORE_CONTROL_KEEPALIVE_H_

namespace waybill {

// The time in milliseconds after which a ping is sent. The stream ends if the ping is not answered
// for as long again.
inline constexpr int kKeepaliveMs = 10'000;

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_KEEPALIVE_H_
