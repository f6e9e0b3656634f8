// SPDX-License-Identifier: Apache-2.0

#include "core/base/version.h"

namespace waybill {

const char* const kVersion = WAYBILL_VERSION;

}  // namespace waybill
