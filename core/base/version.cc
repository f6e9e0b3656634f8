#include "core/base/version.h"

namespace waybill {

const char* const kVersion = WAYBILL_VERSION;

}  // namespace waybill
