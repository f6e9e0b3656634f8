// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <fcntl.h>
// #include <waybill/waybill.h>
//
// static int waybill_go_duplicate(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }
import "C"

import (
	"fmt"
	"os"
	"sync"
	"syscall"
)

// A dispatcher takes the events of a context's queue and hands each to its rank. It waits by Go's
// own poller, so that no thread does.
type dispatcher struct {
	queue *C.waybill_queue_t
	ready *os.File // A duplicate of the queue's descriptor; it is polled and never read.

	mu      sync.Mutex
	ranks   map[uint64]*rank // By what the rank's events have as `user`.
	last    uint64
	stopped bool
}

func startDispatcher(context *C.waybill_context_t) (*dispatcher, error) {
	d := &dispatcher{ranks: map[uint64]*rank{}}
	var e *C.waybill_error_t
	if status := C.waybill_queue_create(context, &d.queue, &e); status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	descriptor, err := C.waybill_go_duplicate(C.waybill_queue_fd(d.queue))
	if descriptor < 0 {
		C.waybill_queue_destroy(d.queue)
		return nil, &Error{Code: ErrResourceExhausted, Scope: ScopeCall, Message: fmt.Sprintf("create a queue: dup: %v", err), cause: err}
	}
	d.ready = os.NewFile(uintptr(descriptor), "waybill queue")
	poller, err := d.ready.SyscallConn()
	if err != nil {
		C.waybill_queue_destroy(d.queue)
		return nil, &Error{Code: ErrInternal, Scope: ScopeCall, Message: fmt.Sprintf("create a queue: %v", err), cause: err}
	}
	go d.run(poller)
	return d, nil
}

// run ends when `ready` is closed.
func (d *dispatcher) run(poller syscall.RawConn) {
	for {
		event := C.waybill_event_t{struct_size: C.sizeof_waybill_event_t}
		err := poller.Read(func(uintptr) bool {
			return C.waybill_queue_poll(d.queue, &event, nil) == C.WAYBILL_OK
		})
		if err != nil {
			return
		}
		d.handle(&event)
	}
}

func (d *dispatcher) handle(event *C.waybill_event_t) {
	fence := event.kind == C.WAYBILL_EVENT_POSTED
	user := uint64(event.user)
	if fence {
		user = uint64(event.token)
	}
	d.mu.Lock()
	r := d.ranks[user]
	if fence {
		delete(d.ranks, user)
	}
	d.mu.Unlock()
	switch {
	case r == nil:
		C.waybill_event_release(event)
	case fence:
		r.retire()
	case event.token != 0:
		r.end(uint64(event.token), takeError(event.status, event.error))
	default:
		r.notify(takeEvent(event))
	}
}

// newUser is a number for another rank's events.
func (d *dispatcher) newUser() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	return d.last
}

// add makes a rank known before it joins; false: the context was closed.
func (d *dispatcher) add(r *rank) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return false
	}
	d.ranks[r.user] = r
	return true
}

// remove returns when all events of a rank that was destroyed are handed out.
func (d *dispatcher) remove(r *rank) {
	if C.waybill_queue_post(d.queue, C.uint64_t(r.user), nil) == C.WAYBILL_OK {
		<-r.retired
	}
}

// stop closes the ranks that are open.
func (d *dispatcher) stop() {
	d.mu.Lock()
	d.stopped = true
	open := make([]*rank, 0, len(d.ranks))
	for _, r := range d.ranks {
		open = append(open, r)
	}
	d.mu.Unlock()
	for _, r := range open {
		r.close()
	}
	d.ready.Close()
	C.waybill_queue_destroy(d.queue)
}
