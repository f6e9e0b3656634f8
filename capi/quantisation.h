// SPDX-License-Identifier: Apache-2.0

// Converts waybill_quantisation_t to the core's Quantisation.
#ifndef WAYBILL_CAPI_QUANTISATION_H_
#define WAYBILL_CAPI_QUANTISATION_H_

#include "absl/status/statusor.h"
#include "capi/waybill.h"
#include "core/tensor/quantisation.h"

namespace waybill::capi {

// kInvalidArgument: a number is unknown, or the fields do not fit together.
absl::StatusOr<Quantisation> ReadQuantisation(const waybill_quantisation_t* given);

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_QUANTISATION_H_
