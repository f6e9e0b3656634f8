// SPDX-License-Identifier: Apache-2.0

// Package inc is C that calls the library: what the calls cost without Go.
package inc

// #cgo LDFLAGS: -lwaybill
// #include <waybill/waybill.h>
//
// static uint64_t states(uintptr_t worker, uint64_t count) {
//   uint64_t failures = 0;
//   for (uint64_t i = 0; i < count; ++i) {
//     waybill_worker_state_t state = WAYBILL_WORKER_STATE_INIT;
//     failures += waybill_worker_state((const waybill_worker_t*)worker, &state, NULL) != WAYBILL_OK;
//   }
//   return failures;
// }
//
// static uint64_t refusals(uintptr_t worker, uint64_t count) {
//   uint64_t failures = 0;
//   for (uint64_t i = 0; i < count; ++i) {
//     waybill_error_t* error = NULL;
//     failures += waybill_worker_join((waybill_worker_t*)worker, 0, 1, &error) != WAYBILL_OK;
//     waybill_error_message(error);
//     waybill_error_destroy(error);
//   }
//   return failures;
// }
import "C"

// States asks a worker for its state so many times; it returns how often that failed.
func States(worker uintptr, count int) int {
	return int(C.states(C.uintptr_t(worker), C.uint64_t(count)))
}

// Refusals joins a worker that has joined; it returns how often that failed.
func Refusals(worker uintptr, count int) int {
	return int(C.refusals(C.uintptr_t(worker), C.uint64_t(count)))
}
