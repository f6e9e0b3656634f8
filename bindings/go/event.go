// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <waybill/waybill.h>
import "C"

import (
	"fmt"
	"runtime"
	"time"
)

// An EventKind is what a notice says. Those of a worker's update come in the order of the constants.
type EventKind uint32

const (
	EventPrepare EventKind = C.WAYBILL_EVENT_PREPARE // Pause what must be paused, then accept or refuse.
	EventArrived EventKind = C.WAYBILL_EVENT_ARRIVED // All of it is here and verified: accept or veto. To a trainer: in every group that waits.
	EventCommit  EventKind = C.WAYBILL_EVENT_COMMIT  // It is shown: run what comes after loading, then accept.
	EventAbort   EventKind = C.WAYBILL_EVENT_ABORT   // It will not be shown; in place the engine stays paused.
	EventOutcome EventKind = C.WAYBILL_EVENT_OUTCOME // Tells a trainer what became of a version in a group.
	EventDecided EventKind = C.WAYBILL_EVENT_DECIDED // Every group that a version was sent to has decided.
	EventEnded   EventKind = C.WAYBILL_EVENT_ENDED   // The controller has dismissed this rank for good.

	// The controller is lost, and the rank tries to come back by itself. What is shown stays shown.
	EventDisconnected EventKind = C.WAYBILL_EVENT_DISCONNECTED
	// The rank is back, and part of a group's term again.
	EventReconnected EventKind = C.WAYBILL_EVENT_RECONNECTED

	// Tells a trainer that versions go to a group from now on. After joining and after EventReconnected,
	// each group that is here is told.
	EventGroupJoined EventKind = C.WAYBILL_EVENT_GROUP_JOINED
	// Tells a trainer that the last worker of a group has left or died.
	EventGroupLeft EventKind = C.WAYBILL_EVENT_GROUP_LEFT
	// Tells a worker, after EventCommit, that the version was published before: this group had missed
	// it, and another group has lent it, or the trainers held it.
	EventCaughtUp EventKind = C.WAYBILL_EVENT_CAUGHT_UP
	// Tells a trainer that a worker has left or died, while others of its group are here. Versions go to
	// the group again when all its workers are here.
	EventWorkerLost EventKind = C.WAYBILL_EVENT_WORKER_LOST
	// Tells a trainer that published with HoldCommit, before EventArrived, that every group has all of the
	// version, verified, or has given it up. Workers that ask for EventArrived have still to answer.
	EventReceived EventKind = C.WAYBILL_EVENT_RECEIVED
)

func (k EventKind) String() string {
	switch k {
	case EventPrepare:
		return "PREPARE"
	case EventArrived:
		return "ARRIVED"
	case EventCommit:
		return "COMMIT"
	case EventAbort:
		return "ABORT"
	case EventOutcome:
		return "OUTCOME"
	case EventDecided:
		return "DECIDED"
	case EventEnded:
		return "ENDED"
	case EventDisconnected:
		return "DISCONNECTED"
	case EventReconnected:
		return "RECONNECTED"
	case EventGroupJoined:
		return "GROUP_JOINED"
	case EventGroupLeft:
		return "GROUP_LEFT"
	case EventCaughtUp:
		return "CAUGHT_UP"
	case EventReceived:
		return "RECEIVED"
	case EventWorkerLost:
		return "WORKER_LOST"
	}
	return fmt.Sprintf("EventKind(%d)", uint32(k))
}

// An Event is a notice.
type Event struct {
	Kind         EventKind
	Version      uint64        // The update's; 0 if the event is not about an update.
	Err          error         // Why, for Abort, Outcome, Decided, Ended, Disconnected and WorkerLost.
	AnswerWanted bool          // The update waits for Accept or Refuse.
	Pause        time.Duration // How long a Commit copied, in shadow-copy.
	Group        string        // The group that an Outcome, GroupJoined, GroupLeft or WorkerLost is about.

	// The bytes that a Commit shows are those that the worker showed before, or of an Outcome, those that
	// every worker of the group showed. False if they differ, or were not compared: without digests, or if
	// the plan has changed or a lane has died.
	Unchanged bool

	Committed bool // The group of an Outcome has committed the version, also if Err says that not all show it.

	update *C.waybill_update_t
}

// takeEvent takes all that belongs to the library's event.
func takeEvent(from *C.waybill_event_t) *Event {
	event := &Event{
		Kind:         EventKind(from.kind),
		Version:      uint64(from.version),
		Err:          takeError(from.status, from.error),
		AnswerWanted: from.answer_wanted != 0,
		Pause:        time.Duration(from.pause_ns),
		Unchanged:    from.unchanged != 0,
		Committed:    from.committed != 0,
	}
	if from.group != nil {
		event.Group = string(takeBlob(from.group))
	}
	if event.AnswerWanted {
		event.update = from.update
		runtime.SetFinalizer(event, func(e *Event) { C.waybill_update_destroy(e.update) })
	} else {
		C.waybill_update_destroy(from.update)
	}
	return event
}

// Accept lets the update go on. It does nothing if the update was given up. It fails if no answer is
// wanted, or if there was one.
func (event *Event) Accept() error {
	var e *C.waybill_error_t
	status := C.waybill_update_accept(event.update, C.uint32_t(event.Kind), &e)
	runtime.KeepAlive(event)
	return takeError(status, e)
}

// Refuse refuses a Prepare or vetoes an Arrived: no worker of the group, or for a trainer's answer of any
// group, shows the version. In answer to a Commit it says that the version could not be put into use: it
// is shown all the same, and the group's Outcome is an error. The reason reaches every trainer.
func (event *Event) Refuse(reason string) error {
	var a arguments
	defer a.free()
	var e *C.waybill_error_t
	status := C.waybill_update_refuse(event.update, C.uint32_t(event.Kind), a.text(reason), &e)
	runtime.KeepAlive(event)
	return takeError(status, e)
}

// Close releases what an event that wants an answer holds, without an answer. The garbage collector
// does the same.
func (event *Event) Close() {
	C.waybill_update_destroy(event.update)
}
