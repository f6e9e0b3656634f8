// SPDX-License-Identifier: Apache-2.0

// Package waybill moves updated model weights from trainers to inference workers; it is Waybill's C
// ABI for Go.
//
// One [Controller] plans for a job and decides commits. Each [Trainer] lends it memory (a [Region])
// that holds shards of tensors as a [Manifest] says, and publishes versions. Each [Worker] shows
// them, whole or not at all: a [Snapshot] holds on to the one that is shown.
//
// Everything may be used by any number of goroutines at the same time. Close gives back what an
// object holds, may be called in any order and more than once; the garbage collector closes what was
// forgotten, but for snapshots, whose bytes it cannot follow. Errors match the Err constants by
// [errors.Is], and those of a context.Context that ended a call also that context's error.
//
// cgo finds the library by CGO_CFLAGS and CGO_LDFLAGS, which pkg-config gives:
//
//	CGO_CFLAGS=$(pkg-config --cflags waybill) CGO_LDFLAGS=$(pkg-config --libs waybill) go build
package waybill

// #cgo LDFLAGS: -lwaybill
// #include <waybill/waybill.h>
import "C"

import "time"

// Version returns the version of the library that is loaded: "MAJOR.MINOR.PATCH".
func Version() string {
	return C.GoString(C.waybill_version())
}

// ABIVersion is the major and the minor version of the ABI of the library that is loaded.
func ABIVersion() (major, minor uint16) {
	version := uint32(C.waybill_abi_version())
	return uint16(version >> 16), uint16(version)
}

// Now is the monotonic clock by which [Progress] tells times.
func Now() time.Duration {
	return time.Duration(C.waybill_now_ns())
}
