#include "capi/waybill.h"

const char* waybill_version(void) { return "0.1.0"; }
