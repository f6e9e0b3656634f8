// SPDX-License-Identifier: Apache-2.0

// How both ends of a control stream find out that the other is gone without a word.
#ifndef WAYBILL_CORE_CONTROL_KEEPALIVE_H_
#define WAYBILL_CORE_CONTROL_KEEPALIVE_H_

namespace waybill {

// A ping after so long, and the stream's end if it is not answered for as long again.
inline constexpr int kKeepaliveMs = 10'000;

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_KEEPALIVE_H_
