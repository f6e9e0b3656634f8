// SPDX-License-Identifier: Apache-2.0

package waybill

// #include <waybill/waybill.h>
import "C"

import (
	"context"
	"errors"
	"runtime"
)

// A Controller plans for a job and decides commits, in this process, until it is closed.
type Controller struct {
	c       *C.waybill_controller_t
	address string
}

// StartController starts serving.
func StartController(options ControllerOptions) (*Controller, error) {
	owner, err := options.Context.orDefault()
	if err != nil {
		return nil, err
	}
	var a arguments
	defer a.free()
	o := C.waybill_controller_options_t{struct_size: C.sizeof_waybill_controller_options_t}
	options.writeTo(&o, &a)
	var c *C.waybill_controller_t
	var e *C.waybill_error_t
	if status := C.waybill_controller_start(owner.c, &o, &c, &e); status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	var blob *C.waybill_blob_t
	if status := C.waybill_controller_address(c, &blob, &e); status != C.WAYBILL_OK {
		C.waybill_controller_destroy(c)
		return nil, takeError(status, e)
	}
	controller := &Controller{c, string(takeBlob(blob))}
	finalise(controller, func() { C.waybill_controller_destroy(c) })
	return controller, nil
}

// Address is where ranks connect to: "127.0.0.1:40123".
func (c *Controller) Address() string {
	return c.address
}

// Status returns what the job is doing, as JSON: phase, versions, ranks, lanes, NICs.
func (c *Controller) Status() ([]byte, error) {
	defer runtime.KeepAlive(c)
	var blob *C.waybill_blob_t
	var e *C.waybill_error_t
	if status := C.waybill_controller_status(c.c, &blob, &e); status != C.WAYBILL_OK {
		return nil, takeError(status, e)
	}
	return takeBlob(blob), nil
}

// Close tells the ranks, and returns when they have heard it, after a second at most.
func (c *Controller) Close() {
	runtime.SetFinalizer(c, nil)
	C.waybill_controller_destroy(c.c)
}

// JobTensors returns the tensors that a job's trainers declare, each once, as JSON: {"tensors":
// [{"name": ..., "dtype": "BF16", "shape": [4096]}, ...]}. It waits until all trainers have said what
// they hold; the error of a deadline names those that are missing. Without a deadline it waits for
// 5 s. address is as RankOptions.Controller.
func JobTensors(ctx context.Context, address, token string) ([]byte, error) {
	return ask(ctx, "ask for the job's tensors", address, token, func(owner *C.waybill_context_t, address, token *C.char, deadline C.int64_t, blob **C.waybill_blob_t, e **C.waybill_error_t) C.waybill_status_t {
		return C.waybill_job_tensors(owner, address, token, deadline, blob, e)
	})
}

// QueryController is the Status of a controller anywhere; address is as RankOptions.Controller.
// Without a deadline it waits for 5 s.
func QueryController(ctx context.Context, address, token string) ([]byte, error) {
	return ask(ctx, "query a controller", address, token, func(owner *C.waybill_context_t, address, token *C.char, deadline C.int64_t, blob **C.waybill_blob_t, e **C.waybill_error_t) C.waybill_status_t {
		return C.waybill_controller_query(owner, address, token, deadline, blob, e)
	})
}

type question func(owner *C.waybill_context_t, address, token *C.char, deadline C.int64_t, blob **C.waybill_blob_t, e **C.waybill_error_t) C.waybill_status_t

func ask(ctx context.Context, what, address, token string, put question) ([]byte, error) {
	owner, err := DefaultContext()
	if err != nil {
		return nil, err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, interrupted(ctx, what)
	}
	type answer struct {
		json []byte
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		var a arguments
		defer a.free()
		var blob *C.waybill_blob_t
		var e *C.waybill_error_t
		status := put(owner.c, a.text(address), a.text(token), deadlineOf(ctx), &blob, &e)
		if status != C.WAYBILL_OK {
			answers <- answer{err: takeError(status, e)}
			return
		}
		answers <- answer{json: takeBlob(blob)}
	}()
	select {
	case found := <-answers:
		return found.json, found.err
	case <-ctx.Done():
		return nil, interrupted(ctx, what)
	}
}
