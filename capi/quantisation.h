// waybill_quantisation_t and the core's Quantisation.
#ifndef WAYBILL_CAPI_QUANTISATION_H_
#define WAYBILL_CAPI_QUANTISATION_H_

#include "absl/status/statusor.h"
#include "capi/waybill.h"
#include "core/tensor/quantisation.h"

namespace waybill::capi {

// kInvalidArgument: numbers that are none, or do not go together.
absl::StatusOr<Quantisation> ReadQuantisation(const waybill_quantisation_t* given);

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_QUANTISATION_H_
