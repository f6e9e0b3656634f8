// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <waybill/waybill.h>
import "C"

import (
	"fmt"
	"runtime"
)

// A DType is the type of a tensor's elements.
type DType uint32

// The numbers never change.
const (
	F32     DType = C.WAYBILL_F32
	F16     DType = C.WAYBILL_F16
	BF16    DType = C.WAYBILL_BF16
	F8E4M3  DType = C.WAYBILL_F8_E4M3 // OCP E4M3 without infinities: torch.float8_e4m3fn.
	F8E5M2  DType = C.WAYBILL_F8_E5M2
	E8M0    DType = C.WAYBILL_E8M0
	I8      DType = C.WAYBILL_I8
	U8      DType = C.WAYBILL_U8
	I16     DType = C.WAYBILL_I16
	U16     DType = C.WAYBILL_U16
	I32     DType = C.WAYBILL_I32
	U32     DType = C.WAYBILL_U32
	I64     DType = C.WAYBILL_I64
	U64     DType = C.WAYBILL_U64
	F64     DType = C.WAYBILL_F64
	Boolean DType = C.WAYBILL_BOOL
)

// Size returns the bytes of one element, or 0 if the number is not a dtype.
func (d DType) Size() int {
	return int(C.waybill_dtype_size(C.uint32_t(d)))
}

// String is the type's name as safetensors spells it: "BF16".
func (d DType) String() string {
	return C.GoString(C.waybill_dtype_name(C.uint32_t(d)))
}

// A Content is what of a tensor a shard holds.
type Content uint32

const (
	ContentPlain     Content = C.WAYBILL_CONTENT_PLAIN     // Its elements.
	ContentQuantised Content = C.WAYBILL_CONTENT_QUANTISED // Its elements, quantised.
	ContentScales    Content = C.WAYBILL_CONTENT_SCALES    // The scales of its quantised elements.
)

// A Shard is a box of a tensor, and where this rank holds it. The zero value is all of tensor 0,
// dense, at the begin of region 0.
type Shard struct {
	Tensor       int
	Region       int
	Offset       uint64        // Where the box's first element lies in the region, in bytes.
	DType        DType         // 0: the tensor's, or the quantisation's.
	Content      Content       // 0: plain.
	Quantisation *Quantisation // nil for plain content.
	Begin, End   []int64       // The box, half-open, slowest dimension first; nil: the whole tensor.
	Strides      []int64       // In elements; nil: dense, last dimension fastest.
}

// Padding is elements of a region that no tensor fills: zeros, outside of the plan.
type Padding struct {
	Region       int
	Offset       uint64
	ElementBytes uint32 // 0: 1.
	Extents      []int64
	Strides      []int64 // In elements; nil: dense.
}

// A Manifest is what one rank holds. Whatever takes it copies it: it may be changed and used again.
// What needs the whole manifest is checked where it is used.
type Manifest struct {
	c *C.waybill_manifest_t
}

func wrapManifest(c *C.waybill_manifest_t) *Manifest {
	m := &Manifest{c}
	runtime.SetFinalizer(m, (*Manifest).Close)
	return m
}

// NewManifest is empty.
func NewManifest() (*Manifest, error) {
	var c *C.waybill_manifest_t
	var e *C.waybill_error_t
	if status := C.waybill_manifest_create(&c, &e); status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return wrapManifest(c), nil
}

// DecodeManifest makes a manifest of what Encode made.
func DecodeManifest(bytes []byte) (*Manifest, error) {
	var a arguments
	defer a.free()
	var c *C.waybill_manifest_t
	var e *C.waybill_error_t
	status := C.waybill_manifest_decode(pinned(&a, bytes), C.size_t(len(bytes)), &c, &e)
	if status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return wrapManifest(c), nil
}

// added is what AddRegion and its like return.
func (m *Manifest) added(status C.waybill_status_t, index C.uint32_t, e *C.waybill_error_t) (int, error) {
	runtime.KeepAlive(m)
	return int(index), takeError(status, e)
}

// AddRegion adds a region and returns its index.
func (m *Manifest) AddRegion(name string, size uint64) (int, error) {
	var a arguments
	defer a.free()
	var index C.uint32_t
	var e *C.waybill_error_t
	status := C.waybill_manifest_add_region(m.c, a.text(name), C.uint64_t(size), &index, &e)
	return m.added(status, index, e)
}

// AddTensor adds a tensor and returns its index.
func (m *Manifest) AddTensor(name string, dtype DType, shape ...int64) (int, error) {
	var a arguments
	defer a.free()
	var index C.uint32_t
	var e *C.waybill_error_t
	status := C.waybill_manifest_add_tensor(m.c, a.text(name), C.uint32_t(dtype), a.numbers(shape),
		C.uint32_t(len(shape)), &index, &e)
	return m.added(status, index, e)
}

// AddShard adds a shard and returns its index.
func (m *Manifest) AddShard(shard Shard) (int, error) {
	// The library cannot see how long slices are.
	if len(shard.End) != len(shard.Begin) || (shard.Strides != nil && len(shard.Strides) != len(shard.Begin)) {
		return 0, differentLengths("shard", shard.Begin, shard.End, shard.Strides)
	}
	var a arguments
	defer a.free()
	c := C.waybill_shard_t{
		struct_size:  C.sizeof_waybill_shard_t,
		tensor_index: C.uint32_t(shard.Tensor),
		region_index: C.uint32_t(shard.Region),
		offset_bytes: C.uint64_t(shard.Offset),
		dtype:        C.uint32_t(shard.DType),
		content:      C.uint32_t(shard.Content),
		quantisation: shard.Quantisation.lend(&a),
		dimensions:   C.uint32_t(len(shard.Begin)),
		begin:        a.numbers(shard.Begin),
		end:          a.numbers(shard.End),
		strides:      a.numbers(shard.Strides),
	}
	var index C.uint32_t
	var e *C.waybill_error_t
	status := C.waybill_manifest_add_shard(m.c, &c, &index, &e)
	return m.added(status, index, e)
}

// AddPadding adds padding and returns its index.
func (m *Manifest) AddPadding(padding Padding) (int, error) {
	if padding.Strides != nil && len(padding.Strides) != len(padding.Extents) {
		return 0, differentLengths("padding", padding.Extents, padding.Strides)
	}
	var a arguments
	defer a.free()
	c := C.waybill_padding_t{
		struct_size:   C.sizeof_waybill_padding_t,
		region_index:  C.uint32_t(padding.Region),
		element_bytes: C.uint32_t(padding.ElementBytes),
		offset_bytes:  C.uint64_t(padding.Offset),
		dimensions:    C.uint32_t(len(padding.Extents)),
		extents:       a.numbers(padding.Extents),
		strides:       a.numbers(padding.Strides),
	}
	var index C.uint32_t
	var e *C.waybill_error_t
	status := C.waybill_manifest_add_padding(m.c, &c, &index, &e)
	return m.added(status, index, e)
}

// AddAlias adds another name of a tensor (a tied head), for which nothing moves.
func (m *Manifest) AddAlias(name string, tensor int) (int, error) {
	var a arguments
	defer a.free()
	var index C.uint32_t
	var e *C.waybill_error_t
	status := C.waybill_manifest_add_alias(m.c, a.text(name), C.uint32_t(tensor), &index, &e)
	return m.added(status, index, e)
}

// RegionCount returns the number of regions.
func (m *Manifest) RegionCount() int {
	defer runtime.KeepAlive(m)
	return int(C.waybill_manifest_region_count(m.c))
}

// RegionSize is in bytes; 0 for an index that is none.
func (m *Manifest) RegionSize(region int) uint64 {
	defer runtime.KeepAlive(m)
	return uint64(C.waybill_manifest_region_size(m.c, C.uint32_t(region)))
}

// Encode is the manifest as it travels; equal manifests give equal bytes on every host.
func (m *Manifest) Encode() ([]byte, error) {
	defer runtime.KeepAlive(m)
	var blob *C.waybill_blob_t
	var e *C.waybill_error_t
	if status := C.waybill_manifest_encode(m.c, &blob, &e); status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return takeBlob(blob), nil
}

// Describe is the manifest as JSON.
func (m *Manifest) Describe() ([]byte, error) {
	defer runtime.KeepAlive(m)
	var blob *C.waybill_blob_t
	var e *C.waybill_error_t
	if status := C.waybill_manifest_describe(m.c, &blob, &e); status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return takeBlob(blob), nil
}

// Close frees it.
func (m *Manifest) Close() {
	C.waybill_manifest_destroy(m.c)
}

// handle returns NULL if there is no manifest; the library refuses it by name.
func (m *Manifest) handle() *C.waybill_manifest_t {
	if m == nil {
		return nil
	}
	return m.c
}

func manifestHandles(manifests []*Manifest) []*C.waybill_manifest_t {
	handles := make([]*C.waybill_manifest_t, len(manifests))
	for i, m := range manifests {
		handles[i] = m.handle()
	}
	return handles
}

func differentLengths(what string, slices ...[]int64) error {
	message := fmt.Sprintf("add a %s: slices of different lengths:", what)
	for _, slice := range slices {
		message += fmt.Sprintf(" %d", len(slice))
	}
	return &Error{Code: ErrInvalidArgument, Scope: ScopeCall, Message: message}
}

// A Quantisation says how elements of a matrix are stored in few bits with a scale for each block.
// The zero value is what DeepSeek-V3's checkpoints have.
type Quantisation struct {
	DType            DType   // The dtype of the elements; 0: F8E4M3.
	FromDType        DType   // Elements are rounded to this first; 0: BF16.
	ScaleDType       DType   // 0: F32.
	Rounding         uint32  // How scales are rounded; 0 or 1: not; 2: up to a power of two; 3: as OCP MX does.
	Division         uint32  // 0 or 1: x * (1 / s); 2: x * (largest / magnitude); 3: x / s.
	StoresReciprocal bool    // 1 / s is stored instead of s.
	Epsilon          float32 // The lower bound of a block's largest magnitude; 0: 1e-4. Negative: no bound.
	BlockRows        uint32  // 0: 128; math.MaxUint32: the whole matrix.
	BlockColumns     uint32  // Likewise.
	ScaleRows        uint32  // A scale is stored for each so many rows; 0: the block's.
	ScaleColumns     uint32
}

// QuantisationNamed knows "fp8-block", "fp8-row", "fp8-tensor", "mxfp8"; its error lists them.
func QuantisationNamed(name string) (*Quantisation, error) {
	var a arguments
	defer a.free()
	c := C.waybill_quantisation_t{struct_size: C.sizeof_waybill_quantisation_t}
	var e *C.waybill_error_t
	if status := C.waybill_quantisation_named(a.text(name), &c, &e); status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return &Quantisation{
		DType:            DType(c.dtype),
		FromDType:        DType(c.from_dtype),
		ScaleDType:       DType(c.scale_dtype),
		Rounding:         uint32(c.rounding),
		Division:         uint32(c.division),
		StoresReciprocal: c.stores_reciprocal != 0,
		Epsilon:          float32(c.epsilon),
		BlockRows:        uint32(c.block_rows),
		BlockColumns:     uint32(c.block_columns),
		ScaleRows:        uint32(c.scale_rows),
		ScaleColumns:     uint32(c.scale_columns),
	}, nil
}

func (q *Quantisation) lend(a *arguments) *C.waybill_quantisation_t {
	if q == nil {
		return nil
	}
	c := &C.waybill_quantisation_t{
		struct_size:       C.sizeof_waybill_quantisation_t,
		dtype:             C.uint32_t(q.DType),
		from_dtype:        C.uint32_t(q.FromDType),
		scale_dtype:       C.uint32_t(q.ScaleDType),
		rounding:          C.uint32_t(q.Rounding),
		division:          C.uint32_t(q.Division),
		stores_reciprocal: flag(q.StoresReciprocal),
		epsilon:           C.float(q.Epsilon),
		block_rows:        C.uint32_t(q.BlockRows),
		block_columns:     C.uint32_t(q.BlockColumns),
		scale_rows:        C.uint32_t(q.ScaleRows),
		scale_columns:     C.uint32_t(q.ScaleColumns),
	}
	a.pins.Pin(c)
	return c
}
