// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <waybill/waybill.h>
import "C"

import "runtime"

// LayoutOptions name a model: one of the two.
type LayoutOptions struct {
	Checkpoint string // A Hugging Face directory: config.json, safetensors. Or else:
	Model      string // A made-up model: "qwen3-0.6b", "gpt2", ...; it has no data.
	Layers     uint32 // How many layers of a made-up model to keep; 0: all.
}

// A Layout is a model's tensors, and how frameworks name, fuse and shard them. It never changes.
type Layout struct {
	c *C.waybill_layout_t
}

// OpenLayout reads a checkpoint's tables, or makes a model up.
func OpenLayout(options LayoutOptions) (*Layout, error) {
	var a arguments
	defer a.free()
	o := C.waybill_layout_options_t{
		struct_size: C.sizeof_waybill_layout_options_t,
		checkpoint:  a.text(options.Checkpoint),
		model:       a.text(options.Model),
		layers:      C.uint32_t(options.Layers),
	}
	var c *C.waybill_layout_t
	var e *C.waybill_error_t
	if status := C.waybill_layout_open(&o, &c, &e); status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	l := &Layout{c}
	runtime.SetFinalizer(l, (*Layout).Close)
	return l, nil
}

// TrainerManifest returns what trainer `rank` holds, in one region "weights". `sharding`:
// "fsdp=2,replicas=4" or "megatron,tp=4,pp=2,ep=8"; what is not named is 1.
func (l *Layout) TrainerManifest(sharding string, rank uint32) (*Manifest, error) {
	defer runtime.KeepAlive(l)
	var a arguments
	defer a.free()
	var c *C.waybill_manifest_t
	var e *C.waybill_error_t
	status := C.waybill_layout_trainer_manifest(l.c, a.text(sharding), C.uint32_t(rank), &c, &e)
	if status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return wrapManifest(c), nil
}

// A WorkerLayout says how workers hold a model as vLLM or SGLang loads it.
type WorkerLayout struct {
	Sharding string // "tp=2,dp=4,ep=8".
	Format   string // "bf16" or a name for QuantisationNamed; "": what config.json says.
	DType    string // Of what is not quantised ("BF16"); "": as stored.
}

// WorkerManifest returns what worker `rank` holds, in one region "weights".
func (l *Layout) WorkerManifest(layout WorkerLayout, rank uint32) (*Manifest, error) {
	defer runtime.KeepAlive(l)
	var a arguments
	defer a.free()
	var c *C.waybill_manifest_t
	var e *C.waybill_error_t
	status := C.waybill_layout_worker_manifest(l.c, a.text(layout.Sharding), C.uint32_t(rank),
		a.text(layout.Format), a.text(layout.DType), &c, &e)
	if status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return wrapManifest(c), nil
}

// WorkerParameters are the engine's parameters of that worker, in its order, as JSON: name, dtype,
// shape, region, offset.
func (l *Layout) WorkerParameters(layout WorkerLayout, rank uint32) ([]byte, error) {
	defer runtime.KeepAlive(l)
	var a arguments
	defer a.free()
	var blob *C.waybill_blob_t
	var e *C.waybill_error_t
	status := C.waybill_layout_worker_parameters(l.c, a.text(layout.Sharding), C.uint32_t(rank),
		a.text(layout.Format), a.text(layout.DType), &blob, &e)
	if status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return takeBlob(blob), nil
}

// Load fills region 0 of the manifest, which `data` is, from the checkpoint.
func (l *Layout) Load(manifest *Manifest, data []byte) error {
	defer runtime.KeepAlive(l)
	var a arguments
	defer a.free()
	var e *C.waybill_error_t
	status := C.waybill_layout_load(l.c, manifest.handle(), pinned(&a, data), C.uint64_t(len(data)), &e)
	runtime.KeepAlive(manifest)
	return takeError(status, e)
}

// Close frees it.
func (l *Layout) Close() {
	C.waybill_layout_destroy(l.c)
}
