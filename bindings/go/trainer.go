// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <waybill/waybill.h>
import "C"

import (
	"context"
	"errors"
	"iter"
	"maps"
	"runtime"
)

// Changes say whether a trainer sends everything, or only what changed since the version before.
type Changes uint32

const (
	ChangesNever  Changes = C.WAYBILL_CHANGES_NEVER
	ChangesAuto   Changes = C.WAYBILL_CHANGES_AUTO // Changes go to the groups that they reach sooner than everything does.
	ChangesAlways Changes = C.WAYBILL_CHANGES_ALWAYS
)

// A Trainer is a rank that holds new weights. Its calls are carried out one after the other, in the
// order they came in.
type Trainer struct {
	rank    *rank
	c       *C.waybill_trainer_t
	regions []*Region // Which the garbage collector would else close.
}

// NewTrainer makes a trainer, which opens nothing before Join.
func NewTrainer(options TrainerOptions) (*Trainer, error) {
	owner, err := options.Context.orDefault()
	if err != nil {
		return nil, err
	}
	r := newRank(owner)
	var a arguments
	defer a.free()
	handles := regionHandles(options.Regions)
	o := C.waybill_trainer_options_t{
		struct_size:  C.sizeof_waybill_trainer_options_t,
		rank:         options.Rank.lend(&a, r.user),
		manifest:     options.Manifest.handle(),
		regions:      (**C.waybill_region_t)(pinned(&a, handles)),
		region_count: C.uint32_t(len(handles)),
		queue:        owner.events.queue,
	}
	options.writeTo(&o, &a)
	var c *C.waybill_trainer_t
	var e *C.waybill_error_t
	status := C.waybill_trainer_create(owner.c, &o, &c, &e)
	runtime.KeepAlive(options)
	if status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	if err := r.open(func() { C.waybill_trainer_destroy(c) }); err != nil {
		return nil, err
	}
	t := &Trainer{r, c, options.Regions}
	finalise(t, r.close)
	return t, nil
}

// Join joins the job, and returns when all ranks are there and every lane carries. Without a
// deadline it waits for 120 s. If the context is cancelled, it returns at once, and Close ends
// what is left of the joining.
func (t *Trainer) Join(ctx context.Context) error {
	defer runtime.KeepAlive(t)
	return t.rank.join(ctx, func(deadline C.int64_t, token C.uint64_t, e **C.waybill_error_t) C.waybill_status_t {
		return C.waybill_trainer_join(t.c, deadline, token, e)
	})
}

// An Update is a version that is being published.
type Update struct {
	version  uint64
	c        *C.waybill_update_t
	call     *call
	rank     *rank
	outcomes map[string]error // Guarded by the rank's lock.
}

// Publish sends a version; every trainer of the job calls it with the same one. Versions only grow.
// The regions must not change until it returns, and may afterwards, however it ends. Without a
// deadline it has 60 s. If the context is cancelled, the update is given up first.
//
// A publish waits its turn within its own deadline: it begins once the version before it is decided. It
// also waits for a controller that is lost to come back.
//
// With UntilCommitted the error is the first one of a group; Outcomes of the *Error says which groups show
// the version all the same.
func (t *Trainer) Publish(ctx context.Context, version uint64, options PublishOptions) error {
	update, err := t.PublishAsync(ctx, version, options)
	if err != nil {
		return err
	}
	<-update.Done()
	err = update.Err()
	var failed *Error
	if errors.As(err, &failed) {
		failed.Outcomes = update.Outcomes()
	}
	return err
}

// PublishAsync does the same as Publish without waiting: the regions must not change until the update is Done.
// The context ends the publish as well.
func (t *Trainer) PublishAsync(ctx context.Context, version uint64, options PublishOptions) (*Update, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, interrupted(ctx, "publish")
	}
	var a arguments
	defer a.free()
	o := C.waybill_publish_options_t{
		struct_size: C.sizeof_waybill_publish_options_t,
		version:     C.uint64_t(version),
		deadline_ns: deadlineOf(ctx),
	}
	options.writeTo(&o, &a)
	update := &Update{version: version, rank: t.rank, outcomes: map[string]error{}}
	t.rank.follow(update)
	var err error
	update.call, err = t.rank.start(func(token C.uint64_t, e **C.waybill_error_t) C.waybill_status_t {
		return C.waybill_trainer_publish(t.c, &o, token, &update.c, e)
	})
	if err != nil {
		t.rank.forget(update)
		return nil, err
	}
	go func() {
		select {
		case <-update.Done():
		case <-ctx.Done():
			// At the deadline the library ends it by itself, and says why it is late.
			if errors.Is(ctx.Err(), context.Canceled) {
				update.Cancel()
			}
			<-update.Done()
		}
		if options.UntilCommitted || update.Err() != nil { // No EventDecided follows.
			t.rank.forget(update)
		}
		if options.HoldCommit { // Abort needs it.
			runtime.SetFinalizer(update, func(u *Update) { C.waybill_update_destroy(u.c) })
		} else {
			C.waybill_update_destroy(update.c)
		}
		runtime.KeepAlive(t)
	}()
	return update, nil
}

// Version returns the version that is being published.
func (u *Update) Version() uint64 {
	return u.version
}

// Done is closed when the publish has ended, and the regions are the caller's again.
func (u *Update) Done() <-chan struct{} {
	return u.call.done
}

// Err returns how the publish ended, or nil before it has ended.
func (u *Update) Err() error {
	select {
	case <-u.call.done:
		return u.call.err
	default:
		return nil
	}
}

// Outcomes returns, for each group that has decided, nil if all its workers show the version, or why not.
// With UntilCommitted all groups have decided once the update is Done.
func (u *Update) Outcomes() map[string]error {
	u.rank.mu.Lock()
	defer u.rank.mu.Unlock()
	return maps.Clone(u.outcomes)
}

// Wait waits until the publish has ended, and returns how. If this context ends first, the publish goes on.
func (u *Update) Wait(ctx context.Context) error {
	return u.call.wait(ctx, "wait for a publish")
}

// Abort makes all groups keep what they show, unless a version that was published with HoldCommit is
// decided; the reason reaches every trainer. It fails for any other version.
func (u *Update) Abort(reason string) error {
	var a arguments
	defer a.free()
	var e *C.waybill_error_t
	status := C.waybill_update_refuse(u.c, C.WAYBILL_EVENT_ARRIVED, a.text(reason), &e)
	runtime.KeepAlive(u)
	return takeError(status, e)
}

// Cancel gives the update up, unless it has ended. The update is Done soon.
func (u *Update) Cancel() {
	C.waybill_update_cancel(u.c, nil)
}

// Release ends the hold of a version; the regions may change when it returns. It does nothing if no
// version is held. It ends within a second or so, also while the version is being sent. If the context
// ends first, the release goes on.
func (t *Trainer) Release(ctx context.Context) error {
	defer runtime.KeepAlive(t)
	c, err := t.rank.start(func(token C.uint64_t, e **C.waybill_error_t) C.waybill_status_t {
		return C.waybill_trainer_release(t.c, token, e)
	})
	if err != nil {
		return err
	}
	return c.wait(ctx, "release")
}

// Next waits for a notice, such as the outcome of a version in a group.
func (t *Trainer) Next(ctx context.Context) (*Event, error) {
	defer runtime.KeepAlive(t)
	return t.rank.next(ctx)
}

// Events yields the notices, until the context ends or the trainer is closed.
func (t *Trainer) Events(ctx context.Context) iter.Seq[*Event] {
	return events(ctx, t.Next)
}

// Progress returns how far the latest update has come.
func (t *Trainer) Progress() (Progress, error) {
	defer runtime.KeepAlive(t)
	c := C.waybill_progress_t{struct_size: C.sizeof_waybill_progress_t}
	var e *C.waybill_error_t
	status := C.waybill_trainer_progress(t.c, &c, &e)
	return progressFrom(&c), takeError(status, e)
}

// Describe returns what was chosen and why, as JSON: identity, epoch, lanes with their paths, NICs,
// counters.
func (t *Trainer) Describe() ([]byte, error) {
	defer runtime.KeepAlive(t)
	var blob *C.waybill_blob_t
	var e *C.waybill_error_t
	if status := C.waybill_trainer_describe(t.c, &blob, &e); status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return takeBlob(blob), nil
}

// Leave leaves the job, after the calls before it.
func (t *Trainer) Leave(ctx context.Context) error {
	defer runtime.KeepAlive(t)
	c, err := t.rank.start(func(token C.uint64_t, e **C.waybill_error_t) C.waybill_status_t {
		return C.waybill_trainer_leave(t.c, token, e)
	})
	if err != nil {
		return err
	}
	return c.wait(ctx, "leave")
}

// Close leaves at once: calls that are under way end, with ErrCancelled. It returns when nothing
// touches the regions any more, after a few seconds at most.
func (t *Trainer) Close() {
	runtime.SetFinalizer(t, nil)
	t.rank.close()
}
