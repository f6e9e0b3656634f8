// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <waybill/waybill.h>
import "C"

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
)

// AnyRank is any rank that nobody has, of those that the world has. The controller chooses.
const AnyRank uint32 = C.WAYBILL_ANY_RANK

// lend returns the options for C, which last until the arguments are freed.
func (o *RankOptions) lend(a *arguments, user uint64) *C.waybill_rank_options_t {
	options := &C.waybill_rank_options_t{
		struct_size: C.sizeof_waybill_rank_options_t,
		user:        C.uint64_t(user),
	}
	o.writeTo(options, a)
	a.pins.Pin(options)
	return options
}

// A call is a call of the library that ends with an event.
type call struct {
	done chan struct{}
	err  error // Once done is closed.
}

// A rank is what a trainer and a worker have in common: calls, and notices.
type rank struct {
	owner   *Context
	user    uint64
	destroy func() // Leaves at once; waits until the regions are quiescent.
	closing sync.Once
	retired chan struct{}

	mu      sync.Mutex
	calls   map[uint64]*call
	last    uint64
	notices []*Event
	updates []*Update     // A trainer's, until all groups have decided.
	changed chan struct{} // Closed, and replaced, at each notice.
}

func newRank(owner *Context) *rank {
	return &rank{
		owner:   owner,
		user:    owner.events.newUser(),
		retired: make(chan struct{}),
		calls:   map[uint64]*call{},
		changed: make(chan struct{}),
	}
}

// open makes events come. It fails if the context was closed meanwhile.
func (r *rank) open(destroy func()) error {
	r.destroy = destroy
	if r.owner.events.add(r) {
		return nil
	}
	destroy()
	return &Error{Code: ErrCancelled, Scope: ScopeCall, Message: "the context was closed meanwhile"}
}

// close may be called more than once. Each call returns when the rank is closed.
func (r *rank) close() {
	r.closing.Do(func() {
		r.destroy()
		r.owner.events.remove(r)
	})
}

// retire follows the last event.
func (r *rank) retire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for token, c := range r.calls {
		delete(r.calls, token)
		c.err = &Error{Code: ErrCancelled, Scope: ScopeCall, Message: "it was closed"}
		close(c.done)
	}
	close(r.retired)
}

func (r *rank) end(token uint64, err error) {
	r.mu.Lock()
	c := r.calls[token]
	delete(r.calls, token)
	r.mu.Unlock()
	if c != nil {
		c.err = err
		close(c.done)
	}
}

func (r *rank) notify(event *Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settle(event)
	r.notices = append(r.notices, event)
	close(r.changed)
	r.changed = make(chan struct{})
}

// settle notes what became of an update in a group. It needs the lock.
func (r *rank) settle(event *Event) {
	// The library refuses a second publish of the same version.
	i := slices.IndexFunc(r.updates, func(u *Update) bool { return u.version == event.Version })
	if i < 0 {
		return
	}
	switch event.Kind {
	case EventOutcome:
		r.updates[i].outcomes[event.Group] = event.Err
	case EventDecided:
		r.updates = slices.Delete(r.updates, i, i+1)
	}
}

// follow notes the outcomes of an update until it has decided, or until forget.
func (r *rank) follow(u *Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updates = append(r.updates, u)
}

func (r *rank) forget(u *Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updates = slices.DeleteFunc(r.updates, func(other *Update) bool { return other == u })
}

// start runs `begin`, a call that ends with an event of the token.
func (r *rank) start(begin func(token C.uint64_t, e **C.waybill_error_t) C.waybill_status_t) (*call, error) {
	c := &call{done: make(chan struct{})}
	r.mu.Lock()
	r.last++
	token := r.last
	r.calls[token] = c
	r.mu.Unlock()
	var e *C.waybill_error_t
	if status := begin(C.uint64_t(token), &e); status != C.WAYBILL_OK {
		r.mu.Lock()
		delete(r.calls, token)
		r.mu.Unlock()
		return nil, takeError(status, e)
	}
	return c, nil
}

// wait returns when the call ends, or the context does: the call then goes on.
func (c *call) wait(ctx context.Context, doing string) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return interrupted(ctx, doing)
	}
}

// waitByDeadline is for calls to which the library was told the context's deadline: it ends them by
// then, and says why they did not end before.
func (c *call) waitByDeadline(ctx context.Context, doing string) error {
	err := c.wait(ctx, doing)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		<-c.done
		return c.err
	}
	return err
}

// join is the same for both roles.
func (r *rank) join(ctx context.Context, begin func(C.int64_t, C.uint64_t, **C.waybill_error_t) C.waybill_status_t) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return interrupted(ctx, "join")
	}
	c, err := r.start(func(token C.uint64_t, e **C.waybill_error_t) C.waybill_status_t {
		return begin(deadlineOf(ctx), token, e)
	})
	if err != nil {
		return err
	}
	return c.waitByDeadline(ctx, "join")
}

// next takes the oldest notice, or waits for one.
func (r *rank) next(ctx context.Context) (*Event, error) {
	for {
		r.mu.Lock()
		if len(r.notices) > 0 {
			event := r.notices[0]
			r.notices = r.notices[1:]
			r.mu.Unlock()
			return event, nil
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-r.retired:
			r.mu.Lock()
			left := len(r.notices)
			r.mu.Unlock()
			if left == 0 {
				return nil, &Error{Code: ErrCancelled, Scope: ScopeCall, Message: "wait for an event: it was closed"}
			}
		case <-ctx.Done():
			return nil, interrupted(ctx, "wait for an event")
		}
	}
}

// finalise closes what the program forgot. Closing can wait, and finalizers must not.
func finalise[T any](object *T, close func()) {
	runtime.SetFinalizer(object, func(*T) { go close() })
}
