// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <waybill/waybill.h>
import "C"

import (
	"runtime"
	"sync"
	"unsafe"
)

// A MemoryKind is where memory is.
type MemoryKind uint32

const (
	MemoryHost   MemoryKind = C.WAYBILL_MEMORY_HOST
	MemoryDevice MemoryKind = C.WAYBILL_MEMORY_DEVICE
)

// RegionOptions are the options of NewRegion. The zero value is fine.
type RegionOptions struct {
	Context  *Context
	Name     string     // For errors.
	ReadOnly bool       // No worker may use it.
	Kind     MemoryKind // 0: host.
}

// A Region is memory that is lent, for trainers to read and workers to write. Nothing is copied.
type Region struct {
	c     *C.waybill_region_t
	size  uint64
	close func()
}

// Element is a type of weights. Types that Go lacks (bfloat16, FP8) are given as their bits.
type Element interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~float32 | ~float64
}

// NewRegion lends a slice's elements. Go leaves them where they are until Close has returned.
func NewRegion[T Element](data []T, options RegionOptions) (*Region, error) {
	var element T
	size := uint64(len(data)) * uint64(unsafe.Sizeof(element))
	return NewRegionAt(unsafe.Pointer(unsafe.SliceData(data)), size, options)
}

// NewRegionAt lends memory that has an address: of Go, of C, of a device. What is not Go's has to be
// there until Close has returned.
func NewRegionAt(data unsafe.Pointer, size uint64, options RegionOptions) (*Region, error) {
	owner, err := options.Context.orDefault()
	if err != nil {
		return nil, err
	}
	pins := new(runtime.Pinner)
	if data != nil {
		pins.Pin(data)
	}
	var a arguments
	defer a.free()
	o := C.waybill_region_options_t{
		struct_size: C.sizeof_waybill_region_options_t,
		data:        data,
		size_bytes:  C.uint64_t(size),
		kind:        C.uint32_t(options.Kind),
		read_only:   flag(options.ReadOnly),
		name:        a.text(options.Name),
	}
	var c *C.waybill_region_t
	var e *C.waybill_error_t
	if status := C.waybill_region_create(owner.c, &o, &c, &e); status != C.WAYBILL_OK {
		pins.Unpin()
		return nil, takeError(status, e)
	}
	r := &Region{c: c, size: size, close: sync.OnceFunc(func() {
		C.waybill_region_destroy(c)
		pins.Unpin()
	})}
	finalise(r, r.close)
	return r, nil
}

// Size is in bytes.
func (r *Region) Size() uint64 {
	return r.size
}

// Close makes the memory the caller's again. Ranks that use it are made to leave first, which can
// take some seconds.
func (r *Region) Close() {
	runtime.SetFinalizer(r, nil)
	r.close()
}

// regionHandles are those of a rank's options.
func regionHandles(regions []*Region) []*C.waybill_region_t {
	handles := make([]*C.waybill_region_t, len(regions))
	for i, region := range regions {
		if region != nil {
			handles[i] = region.c
		}
	}
	return handles
}
