// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <waybill/waybill.h>
import "C"

import (
	"context"
	"errors"
	"fmt"
)

// A Code says what kind of error it is; the numbers are those of gRPC and never change. Every code
// is an error itself, for [errors.Is]: errors.Is(err, waybill.ErrUnavailable).
type Code int32

// What errors match.
const (
	ErrCancelled          Code = C.WAYBILL_CANCELLED
	ErrUnknown            Code = C.WAYBILL_UNKNOWN
	ErrInvalidArgument    Code = C.WAYBILL_INVALID_ARGUMENT
	ErrDeadlineExceeded   Code = C.WAYBILL_DEADLINE_EXCEEDED
	ErrNotFound           Code = C.WAYBILL_NOT_FOUND
	ErrAlreadyExists      Code = C.WAYBILL_ALREADY_EXISTS
	ErrPermissionDenied   Code = C.WAYBILL_PERMISSION_DENIED
	ErrResourceExhausted  Code = C.WAYBILL_RESOURCE_EXHAUSTED
	ErrFailedPrecondition Code = C.WAYBILL_FAILED_PRECONDITION
	ErrAborted            Code = C.WAYBILL_ABORTED
	ErrOutOfRange         Code = C.WAYBILL_OUT_OF_RANGE
	ErrUnimplemented      Code = C.WAYBILL_UNIMPLEMENTED
	ErrInternal           Code = C.WAYBILL_INTERNAL
	ErrUnavailable        Code = C.WAYBILL_UNAVAILABLE
	ErrDataLoss           Code = C.WAYBILL_DATA_LOSS
	ErrUnauthenticated    Code = C.WAYBILL_UNAUTHENTICATED
)

// Error is the code's name: "INVALID_ARGUMENT".
func (c Code) Error() string {
	return C.GoString(C.waybill_status_name(C.waybill_status_t(c)))
}

// A Scope says how far an error reaches.
type Scope uint32

const (
	ScopeCall   Scope = C.WAYBILL_SCOPE_CALL   // This call failed; everything else goes on.
	ScopeUpdate Scope = C.WAYBILL_SCOPE_UPDATE // This version will not be shown; the next may be.
	ScopePeer   Scope = C.WAYBILL_SCOPE_PEER   // One peer is gone.
)

// An Error is what the library says of a call that failed, word for word.
type Error struct {
	Code    Code
	Scope   Scope
	Message string // What was being done, to what, what was found, what is allowed.

	// Outcomes has, for each group that has decided, what Update.Outcomes returns. Only Publish sets it.
	Outcomes map[string]error

	cause error // The cause of the context.Context that ended the call, or nil.
}

// Error is the code's name and the message.
func (e *Error) Error() string {
	return e.Code.Error() + ": " + e.Message
}

// Is makes an error match its code, and context.Canceled and context.DeadlineExceeded theirs.
func (e *Error) Is(target error) bool {
	switch target {
	case context.Canceled:
		return e.Code == ErrCancelled
	case context.DeadlineExceeded:
		return e.Code == ErrDeadlineExceeded
	}
	code, ok := target.(Code)
	return ok && code == e.Code
}

// Unwrap is the cause of the context.Context that ended the call, or nil.
func (e *Error) Unwrap() error {
	return e.cause
}

// takeError makes an error of what a call returned and destroys the library's; nil for WAYBILL_OK.
func takeError(status C.waybill_status_t, e *C.waybill_error_t) error {
	if status == C.WAYBILL_OK {
		return nil
	}
	err := &Error{
		Code:    Code(status),
		Scope:   Scope(C.waybill_error_scope(e)),
		Message: C.GoString(C.waybill_error_message(e)),
	}
	C.waybill_error_destroy(e)
	return err
}

// interrupted says that `ctx` ended while `doing`.
func interrupted(ctx context.Context, doing string) error {
	cause := context.Cause(ctx)
	code := ErrCancelled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = ErrDeadlineExceeded
	}
	return &Error{Code: code, Scope: ScopeCall, Message: fmt.Sprintf("%s: %v", doing, cause), cause: cause}
}
