// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <waybill/waybill.h>
import "C"

import (
	"context"
	"iter"
	"runtime"
	"unsafe"
)

// A Mode says how a worker changes from one version to the next.
type Mode uint32

const (
	ModeShadow     Mode = C.WAYBILL_MODE_SHADOW      // Two buffers of Waybill's; a commit shows the other one.
	ModeShadowCopy Mode = C.WAYBILL_MODE_SHADOW_COPY // The caller's memory stays where it is; a commit copies into it, once no Snapshot is held.
	ModeInPlace    Mode = C.WAYBILL_MODE_IN_PLACE    // Written directly; the engine is paused from before READY.
)

// An Ask says which notices an update waits with for Event.Accept or Event.Refuse; bits.
type Ask uint32

const (
	AskPrepare Ask = C.WAYBILL_ASK_PREPARE
	AskArrived Ask = C.WAYBILL_ASK_ARRIVED
	AskCommit  Ask = C.WAYBILL_ASK_COMMIT
)

// A Worker is an inference rank.
//
// In ModeShadowCopy and ModeInPlace, a goroutine that reads the regions while updates arrive holds a
// Snapshot for as long as it reads, unless it is paused at EventPrepare or EventCommit. Otherwise it may
// see parts of two versions:
//
//	reading, err := worker.Snapshot("inference")
//	if err != nil {
//		return err
//	}
//	defer reading.Close() // The next commit waits for it.
//	infer(weights)
type Worker struct {
	rank    *rank
	c       *C.waybill_worker_t
	regions []*Region // Which the garbage collector would else close.
}

// NewWorker makes a worker, which opens nothing before Join.
//
//	mode         no regions    regions
//	shadow       two buffers   refused: memory of the caller's cannot be swapped
//	shadow-copy  refused       one buffer, copied into them
//	in-place     one buffer    written directly
func NewWorker(options WorkerOptions) (*Worker, error) {
	owner, err := options.Context.orDefault()
	if err != nil {
		return nil, err
	}
	r := newRank(owner)
	var a arguments
	defer a.free()
	handles := regionHandles(options.Regions)
	o := C.waybill_worker_options_t{
		struct_size:  C.sizeof_waybill_worker_options_t,
		rank:         options.Rank.lend(&a, r.user),
		manifest:     options.Manifest.handle(),
		regions:      (**C.waybill_region_t)(pinned(&a, handles)),
		region_count: C.uint32_t(len(handles)),
		queue:        owner.events.queue,
	}
	options.writeTo(&o, &a)
	var c *C.waybill_worker_t
	var e *C.waybill_error_t
	status := C.waybill_worker_create(owner.c, &o, &c, &e)
	runtime.KeepAlive(options)
	if status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	if err := r.open(func() { C.waybill_worker_destroy(c) }); err != nil {
		return nil, err
	}
	w := &Worker{r, c, options.Regions}
	finalise(w, r.close)
	return w, nil
}

// Join joins the job, as Trainer.Join does.
func (w *Worker) Join(ctx context.Context) error {
	defer runtime.KeepAlive(w)
	return w.rank.join(ctx, func(deadline C.int64_t, token C.uint64_t, e **C.waybill_error_t) C.waybill_status_t {
		return C.waybill_worker_join(w.c, deadline, token, e)
	})
}

// Next waits for a notice.
func (w *Worker) Next(ctx context.Context) (*Event, error) {
	defer runtime.KeepAlive(w)
	return w.rank.next(ctx)
}

// Events yields the notices, until the context ends or the worker is closed.
func (w *Worker) Events(ctx context.Context) iter.Seq[*Event] {
	return events(ctx, w.Next)
}

func events(ctx context.Context, next func(context.Context) (*Event, error)) iter.Seq[*Event] {
	return func(yield func(*Event) bool) {
		for {
			event, err := next(ctx)
			if err != nil || !yield(event) {
				return
			}
		}
	}
}

// WorkerState tells what a worker shows, and what came late.
type WorkerState struct {
	ShownVersion uint64 // 0: none.
	Joined       bool
	Dirty        bool   // In place: written and not committed; nothing can be read.
	InDoubt      bool   // It voted and lost the controller: it shows the old version until it hears the decision.
	CatchingUp   bool   // Another group lends the version that this one has missed.
	Stragglers   uint64 // How many late words of abandoned updates have come.
	Repeats      uint64 // How many immediates have come twice.
	Renewals     uint64 // How many buffers were fenced.

	UnchangedVersions uint64 // How many versions had the bytes that were shown before: see Event.Unchanged.
	Exact             bool   // A version is shown, and it is all of the trainers' tensors: see PublishOptions.Tensors.
}

// State returns the current state.
func (w *Worker) State() (WorkerState, error) {
	defer runtime.KeepAlive(w)
	c := C.waybill_worker_state_t{struct_size: C.sizeof_waybill_worker_state_t}
	var e *C.waybill_error_t
	if status := C.waybill_worker_state(w.c, &c, &e); status != C.WAYBILL_OK {
		return WorkerState{}, takeError(status, e)
	}
	return WorkerState{
		ShownVersion: uint64(c.shown_version),
		Joined:       c.joined != 0,
		Dirty:        c.dirty != 0,
		InDoubt:      c.in_doubt != 0,
		CatchingUp:   c.catching_up != 0,
		Stragglers:   uint64(c.stragglers),
		Repeats:      uint64(c.repeats),
		Renewals:     uint64(c.renewals),

		UnchangedVersions: uint64(c.unchanged_versions),
		Exact:             c.exact != 0,
	}, nil
}

// Pause lets an engine unmap its memory on a GPU while it sleeps: it releases what is registered of it. Until
// Resume the regions are neither read nor written, and updates are refused.
//
// ErrFailedPrecondition: an update is at hand, or a snapshot is held.
func (w *Worker) Pause() error {
	defer runtime.KeepAlive(w)
	var e *C.waybill_error_t
	return takeError(C.waybill_worker_pause(w.c, &e), e)
}

// Resume ends the pause; the regions are memory again, at the same addresses. contentsKept is false if the
// weights are lost, so that nothing is shown before the next version.
func (w *Worker) Resume(contentsKept bool) error {
	defer runtime.KeepAlive(w)
	var e *C.waybill_error_t
	return takeError(C.waybill_worker_resume(w.c, flag(contentsKept), &e), e)
}

// Progress returns how far the latest update has come.
func (w *Worker) Progress() (Progress, error) {
	defer runtime.KeepAlive(w)
	c := C.waybill_progress_t{struct_size: C.sizeof_waybill_progress_t}
	var e *C.waybill_error_t
	status := C.waybill_worker_progress(w.c, &c, &e)
	return progressFrom(&c), takeError(status, e)
}

// Describe describes the worker, as Trainer.Describe does.
func (w *Worker) Describe() ([]byte, error) {
	defer runtime.KeepAlive(w)
	var blob *C.waybill_blob_t
	var e *C.waybill_error_t
	if status := C.waybill_worker_describe(w.c, &blob, &e); status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return takeBlob(blob), nil
}

// Leave leaves the job, after the calls before it. What is shown can still be read.
func (w *Worker) Leave(ctx context.Context) error {
	defer runtime.KeepAlive(w)
	c, err := w.rank.start(func(token C.uint64_t, e **C.waybill_error_t) C.waybill_status_t {
		return C.waybill_worker_leave(w.c, token, e)
	})
	if err != nil {
		return err
	}
	return c.wait(ctx, "leave")
}

// Close leaves at once, as Trainer.Close does. Snapshots that live keep Waybill's buffers, not the
// caller's regions.
func (w *Worker) Close() {
	runtime.SetFinalizer(w, nil)
	w.rank.close()
}

// A Snapshot is a hold on the version that was shown: its bytes do not change until it is closed,
// and an update that needs the buffer waits. It has to be closed: since slices of its bytes may be
// anywhere, the garbage collector does not do it.
type Snapshot struct {
	c       *C.waybill_snapshot_t
	version uint64
}

// Fetch gets the newest version, and returns the one that is shown then. It is for a worker with
// UpdatesWhenAsked. The version is the newest that any group has committed, or that all trainers hold,
// also if this worker shows it already. The workers of a group get it once all of them have asked;
// questions of the update are answered elsewhere, from Events. A version that is published meanwhile
// takes its place.
//
// atLeast is the least version that will do, and 0 any: Fetch waits until there is one. The version
// that is shown plus 1 waits for a newer one. Of a group's workers the highest counts.
//
// ErrDeadlineExceeded: there is no version yet, a newer one could not be had, or other workers of the
// group have not asked. ErrFailedPrecondition: versions come as they are published.
func (w *Worker) Fetch(ctx context.Context, atLeast uint64) (uint64, error) {
	defer runtime.KeepAlive(w)
	c, err := w.rank.start(func(token C.uint64_t, e **C.waybill_error_t) C.waybill_status_t {
		return C.waybill_worker_fetch(w.c, C.uint64_t(atLeast), deadlineOf(ctx), token, e)
	})
	if err == nil {
		err = c.waitByDeadline(ctx, "fetch")
	}
	if err != nil {
		return 0, err
	}
	state, err := w.State()
	return state.ShownVersion, err
}

// Verify compares what is shown now with the digests with which it came, and returns the version. It
// finds what somebody else has written to the memory since. It reads all of it on this thread, and a
// commit waits meanwhile.
//
// ErrDataLoss names what differs; ErrFailedPrecondition: nothing is shown, the memory is paused, or the
// version was published without digests; ErrUnavailable: the memory is being written in place, or an
// update waits to write it.
func (w *Worker) Verify() (uint64, error) {
	defer runtime.KeepAlive(w)
	var version C.uint64_t
	var e *C.waybill_error_t
	if status := C.waybill_worker_verify(w.c, &version, &e); status != C.WAYBILL_OK {
		return 0, takeError(status, e)
	}
	return uint64(version), nil
}

// Snapshot holds what is shown. `holder` names the reader, for the error of an update that waits for
// the snapshot.
func (w *Worker) Snapshot(holder string) (*Snapshot, error) {
	defer runtime.KeepAlive(w)
	var a arguments
	defer a.free()
	var c *C.waybill_snapshot_t
	var e *C.waybill_error_t
	if status := C.waybill_worker_snapshot(w.c, a.text(holder), &c, &e); status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return &Snapshot{c, uint64(C.waybill_snapshot_version(c))}, nil
}

// Version returns the version that is held.
func (s *Snapshot) Version() uint64 {
	return s.version
}

// Region returns the bytes of a region of the worker's manifest: a read-only view, which ends with Close.
func (s *Snapshot) Region(region int) ([]byte, error) {
	var data unsafe.Pointer
	var size C.uint64_t
	var e *C.waybill_error_t
	status := C.waybill_snapshot_region(s.c, C.uint32_t(region), &data, &size, &e)
	if status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return unsafe.Slice((*byte)(data), int(size)), nil
}

// Close ends the hold; its bytes must not be read afterwards.
func (s *Snapshot) Close() {
	C.waybill_snapshot_destroy(s.c)
}
