// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <waybill/waybill.h>
import "C"

import "runtime"

// PlanOptions are the arguments of BuildPlan.
type PlanOptions struct {
	Trainers           []*Manifest // The index is the rank.
	Workers            []*Manifest
	SmallestPieceBytes uint64 // Of what several trainers hold, and share out; 0: 64 KiB.
}

// A Plan is the routing tables of a job. It never changes.
type Plan struct {
	c *C.waybill_plan_t
}

// BuildPlan is pure: the same manifests in the same order give the same plan, byte for byte, on every
// host.
func BuildPlan(options PlanOptions) (*Plan, error) {
	var a arguments
	defer a.free()
	trainers, workers := manifestHandles(options.Trainers), manifestHandles(options.Workers)
	o := C.waybill_plan_options_t{
		struct_size:          C.sizeof_waybill_plan_options_t,
		trainers:             (**C.waybill_manifest_t)(pinned(&a, trainers)),
		workers:              (**C.waybill_manifest_t)(pinned(&a, workers)),
		trainer_count:        C.uint32_t(len(trainers)),
		worker_count:         C.uint32_t(len(workers)),
		smallest_piece_bytes: C.uint64_t(options.SmallestPieceBytes),
	}
	var c *C.waybill_plan_t
	var e *C.waybill_error_t
	status := C.waybill_plan_build(&o, &c, &e)
	runtime.KeepAlive(options)
	if status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	p := &Plan{c}
	runtime.SetFinalizer(p, (*Plan).Close)
	return p, nil
}

// PlanSummary is a plan in numbers.
type PlanSummary struct {
	Hash           uint64 // Equal plans, equal hashes, on every host.
	Bytes          uint64 // That arrive at workers in each update.
	Routes         uint64
	Writes         uint64 // How many writes the routes become if nothing can be mapped.
	Maxima         uint64 // Of split quantisation blocks, traded between trainers.
	MaximaMessages uint64
	BusiestToBound float64 // The busiest rank over the lower bound of any assignment; 1 is perfect.
	BusiestToMean  float64 // The busiest trainer over the mean.
}

// Summarise counts.
func (p *Plan) Summarise() (PlanSummary, error) {
	defer runtime.KeepAlive(p)
	c := C.waybill_plan_summary_t{struct_size: C.sizeof_waybill_plan_summary_t}
	var e *C.waybill_error_t
	status := C.waybill_plan_summarise(p.c, &c, &e)
	return PlanSummary{
		Hash:           uint64(c.hash),
		Bytes:          uint64(c.bytes),
		Routes:         uint64(c.routes),
		Writes:         uint64(c.writes),
		Maxima:         uint64(c.maxima),
		MaximaMessages: uint64(c.maxima_messages),
		BusiestToBound: float64(c.busiest_to_bound),
		BusiestToMean:  float64(c.busiest_to_mean),
	}, takeError(status, e)
}

// Explain has the formats "text", a table for people; "json"; "routes", JSON with every route.
func (p *Plan) Explain(format string) (string, error) {
	defer runtime.KeepAlive(p)
	var a arguments
	defer a.free()
	var blob *C.waybill_blob_t
	var e *C.waybill_error_t
	if status := C.waybill_plan_explain(p.c, a.text(format), &blob, &e); status != C.WAYBILL_OK {
		return "", takeError(status, e)
	}
	return string(takeBlob(blob)), nil
}

// Close frees it.
func (p *Plan) Close() {
	C.waybill_plan_destroy(p.c)
}
