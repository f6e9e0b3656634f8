// Package waybill moves updated model weights from trainers to inference workers; it is Waybill's C
// ABI for Go.
//
// cgo finds the library by CGO_CFLAGS and CGO_LDFLAGS, which pkg-config gives:
//
//	CGO_CFLAGS=$(pkg-config --cflags waybill) CGO_LDFLAGS=$(pkg-config --libs waybill) go build
package waybill

// #cgo LDFLAGS: -lwaybill
// #include <waybill/waybill.h>
import "C"

// Version is that of the library that is loaded: "0.1.0".
func Version() string {
	return C.GoString(C.waybill_version())
}
