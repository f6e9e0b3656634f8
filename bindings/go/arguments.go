// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <stdlib.h>
// #include <waybill/waybill.h>
import "C"

import (
	"context"
	"runtime"
	"strings"
	"time"
	"unsafe"
)

// arguments holds what an options struct points to. Nothing of it moves before the call is over.
type arguments struct {
	pins  runtime.Pinner
	texts []*C.char
}

func (a *arguments) free() {
	a.pins.Unpin()
	for _, text := range a.texts {
		C.free(unsafe.Pointer(text))
	}
}

// text lends a text. C would end it at a zero within: a byte that is not UTF-8 makes the library
// refuse it instead.
func (a *arguments) text(s string) *C.char {
	if s == "" {
		return nil
	}
	text := C.CString(strings.ReplaceAll(s, "\x00", "\xff"))
	a.texts = append(a.texts, text)
	return text
}

func (a *arguments) numbers(values []int64) *C.int64_t {
	return (*C.int64_t)(pinned(a, values))
}

// pinned returns the address of the first element, or nil for an empty slice.
func pinned[T any](a *arguments, values []T) unsafe.Pointer {
	if len(values) == 0 {
		return nil
	}
	first := unsafe.Pointer(unsafe.SliceData(values))
	a.pins.Pin(first)
	return first
}

// deadlineOf returns a context's deadline by the library's clock, or 0 (the default) if it has none.
func deadlineOf(ctx context.Context) C.int64_t {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(1, C.waybill_now_ns()+C.int64_t(time.Until(deadline)))
}

// takeBlob copies a blob, and destroys it.
func takeBlob(blob *C.waybill_blob_t) []byte {
	size := C.waybill_blob_size(blob)
	bytes := make([]byte, size)
	copy(bytes, unsafe.Slice((*byte)(C.waybill_blob_data(blob)), size))
	C.waybill_blob_destroy(blob)
	return bytes
}

func flag(set bool) C.uint32_t {
	if set {
		return 1
	}
	return 0
}
