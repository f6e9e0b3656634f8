// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <waybill/waybill.h>
import "C"

import "time"

// Stages of an update on a rank, as indices of Progress.Stages.
const (
	StageExchange = C.WAYBILL_STAGE_EXCHANGE // A trainer: maxima of split blocks are worked out and traded.
	StageStage    = C.WAYBILL_STAGE_STAGE    // Copies, casts, quantises.
	StagePost     = C.WAYBILL_STAGE_POST     // Chunks are handed to the network.
	StageWait     = C.WAYBILL_STAGE_WAIT     // All is handed over, and not all of it is complete.
	StageReceive  = C.WAYBILL_STAGE_RECEIVE  // A worker: ready, and not everything is here.
	StageVerify   = C.WAYBILL_STAGE_VERIFY   // Digests what has come.
	StageCommit   = C.WAYBILL_STAGE_COMMIT   // From the decision to the version's being shown.
	StageCount    = C.WAYBILL_STAGE_COUNT
)

// A Span is when a stage was, by Now's clock; 0: not there, or not yet.
type Span struct {
	Begin, End time.Duration
}

// Progress tells how far the latest update of a rank has come. Equal plans have equal counts.
type Progress struct {
	Version        uint64
	PlannedBytes   uint64 // That this rank sends, or receives, in every update.
	Bytes          uint64 // Handed to the network or stored; of a worker: arrived.
	Writes         uint64 // Posted to a network by a trainer. What follows is a trainer's too.
	Stores         uint64 // Chunks stored at their final address through a mapping.
	Immediates     uint64
	MaximaMessages uint64 // To other trainers.
	MaximaBytes    uint64
	Nonfinite      uint64 // NaNs and infinities among what was quantised.
	Stages         [StageCount]Span
}

func progressFrom(c *C.waybill_progress_t) Progress {
	p := Progress{
		Version:        uint64(c.version),
		PlannedBytes:   uint64(c.planned_bytes),
		Bytes:          uint64(c.bytes),
		Writes:         uint64(c.writes),
		Stores:         uint64(c.stores),
		Immediates:     uint64(c.immediates),
		MaximaMessages: uint64(c.maxima_messages),
		MaximaBytes:    uint64(c.maxima_bytes),
		Nonfinite:      uint64(c.nonfinite),
	}
	for i := range p.Stages {
		p.Stages[i] = Span{time.Duration(c.begin_ns[i]), time.Duration(c.end_ns[i])}
	}
	return p
}
