/* Waybill: the C ABI. C99. */
#ifndef WAYBILL_CAPI_WAYBILL_H_
#define WAYBILL_CAPI_WAYBILL_H_

#include <stddef.h>
#include <stdint.h>

#define WAYBILL_API __attribute__((visibility("default")))
#define WAYBILL_MUST_USE __attribute__((warn_unused_result))

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0": of the library that is loaded. [any thread] Static. */
WAYBILL_API const char* waybill_version(void);

#ifdef __cplusplus
}
#endif

#endif /* WAYBILL_CAPI_WAYBILL_H_ */
