// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <stdint.h>
// #include <waybill/waybill.h>
//
// void waybillGoLog(uintptr_t user, uint32_t level, char* line);
//
// static void waybill_go_log(void* user, uint32_t level, const char* line) {
//   waybillGoLog((uintptr_t)user, level, (char*)line);
// }
//
// static waybill_status_t waybill_go_context_create(uintptr_t log_user, waybill_context_t** out,
//                                                   waybill_error_t** error) {
//   waybill_context_options_t options = WAYBILL_CONTEXT_OPTIONS_INIT;
//   options.log_sink = log_user == 0 ? NULL : waybill_go_log;
//   options.log_user = (void*)log_user;
//   return waybill_context_create(&options, out, error);
// }
import "C"

import (
	"runtime/cgo"
	"sync"
)

// A LogLevel says how much a line of the log matters.
type LogLevel uint32

const (
	LogInformation LogLevel = 1
	LogWarning     LogLevel = 2
)

// ContextOptions are the options of NewContext. The zero value is fine.
type ContextOptions struct {
	// What was chosen and why, and what fell back. It is called on any thread, must not use this
	// package, and lives as long as the program. A panic of its ends the program, as any goroutine's
	// does. nil: warnings are written to standard error.
	Log func(level LogLevel, line string)
}

// A Context is what objects of one user share: the log, and a goroutine that hands out what happens
// to them. Wherever options have one, nil is the DefaultContext.
type Context struct {
	c       *C.waybill_context_t
	events  *dispatcher
	closing sync.Once
}

var defaultContext = sync.OnceValues(func() (*Context, error) { return NewContext(ContextOptions{}) })

// DefaultContext is the program's; it writes warnings to standard error, and need not be closed.
func DefaultContext() (*Context, error) {
	return defaultContext()
}

// NewContext makes another one than the default.
func NewContext(options ContextOptions) (*Context, error) {
	var user C.uintptr_t
	if options.Log != nil {
		user = C.uintptr_t(cgo.NewHandle(options.Log))
	}
	var c *C.waybill_context_t
	var e *C.waybill_error_t
	if status := C.waybill_go_context_create(user, &c, &e); status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	events, err := startDispatcher(c)
	if err != nil {
		C.waybill_context_destroy(c)
		return nil, err
	}
	return &Context{c: c, events: events}, nil
}

//export waybillGoLog
func waybillGoLog(user C.uintptr_t, level C.uint32_t, line *C.char) {
	cgo.Handle(user).Value().(func(LogLevel, string))(LogLevel(level), C.GoString(line))
}

// orDefault is the context that options mean.
func (x *Context) orDefault() (*Context, error) {
	if x != nil {
		return x, nil
	}
	return DefaultContext()
}

// Describe returns what this host and this build can do, as JSON: version, SIMD targets, fabrics (or why
// not), GPUs (or why not).
func (x *Context) Describe() ([]byte, error) {
	var blob *C.waybill_blob_t
	var e *C.waybill_error_t
	if status := C.waybill_context_describe(x.c, &blob, &e); status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return takeBlob(blob), nil
}

// Close closes the trainers and the workers that were made from it; nothing new can be.
func (x *Context) Close() {
	x.closing.Do(func() {
		C.waybill_context_destroy(x.c)
		x.events.stop()
	})
}
