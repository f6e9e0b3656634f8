// SPDX-License-Identifier: Apache-2.0

package waybill

import "unsafe"

// Handle is the number that a worker is in C.
func (w *Worker) Handle() uintptr {
	return uintptr(unsafe.Pointer(w.c))
}

// Pass lets an event through the queue, the poller and the dispatcher; it returns when it is there.
func (x *Context) Pass() {
	r := newRank(x)
	x.events.add(r)
	x.events.remove(r)
}

// Open is how many ranks are open.
func (x *Context) Open() int {
	x.events.mu.Lock()
	defer x.events.mu.Unlock()
	return len(x.events.ranks)
}
