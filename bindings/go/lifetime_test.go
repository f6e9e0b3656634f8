// SPDX-License-Identifier: Apache-2.0

package waybill_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	waybill "github.com/waybill/waybill-go"
)

// Once it has ended, every use is refused with an error, and none with worse.
func TestCallsMayRaceWithClose(t *testing.T) {
	for range 5 {
		j := newJob(t, jobOptions{mode: waybill.ModeShadowCopy})
		j.join()
		check(t, j.publish(1))
		var wait sync.WaitGroup
		allow := func(err error) {
			if err != nil && !errors.Is(err, waybill.ErrInvalidArgument) && !errors.Is(err, waybill.ErrCancelled) &&
				!errors.Is(err, waybill.ErrFailedPrecondition) && !errors.Is(err, waybill.ErrUnavailable) {
				t.Error(err)
			}
		}
		for _, use := range []func(){
			func() { _, err := j.workers[0].State(); allow(err) },
			func() { _, err := j.trainers[0].Describe(); allow(err) },
			func() { _, err := j.workers[0].Progress(); allow(err) },
			func() {
				snapshot, err := j.workers[0].Snapshot("race")
				if allow(err); err == nil {
					mustHold(t, snapshot, 1)
					snapshot.Close()
				}
			},
			func() {
				_, err := j.trainers[0].PublishAsync(j.ctx, 1, waybill.PublishOptions{})
				allow(err) // It was published.
			},
		} {
			wait.Add(1)
			go func() {
				defer wait.Done()
				for range 50 {
					use()
				}
			}()
		}
		for _, closing := range []func(){
			j.workers[0].Close, j.trainers[0].Close, j.workers[0].Close, func() { allow(j.workers[0].Leave(j.ctx)) },
		} {
			wait.Add(1)
			go func() {
				defer wait.Done()
				closing()
			}()
		}
		wait.Wait()
		j.regions[0].Close()
	}
}

func TestWhatIsForgottenIsClosed(t *testing.T) {
	own := must(waybill.NewContext(waybill.ContextOptions{}))(t)
	defer own.Close()
	memory := make([]uint16, rows*columns)
	forget := func() {
		region := must(waybill.NewRegion(memory, waybill.RegionOptions{Context: own}))(t)
		must(waybill.NewTrainer(waybill.TrainerOptions{
			Context: own, Manifest: manifestOf(t, 0, rows), Regions: []*waybill.Region{region},
		}))(t)
		must(waybill.NewWorker(waybill.WorkerOptions{Context: own, Manifest: manifestOf(t, 0, rows)}))(t)
	}
	forget()
	if own.Open() == 0 {
		t.Fatal("nothing was opened")
	}
	for ctx := patience(t); own.Open() > 0; runtime.GC() {
		check(t, ctx.Err())
	}
}

// A rank whose user only waits for its events is not forgotten.
func TestWhoWaitsIsNotForgotten(t *testing.T) {
	own := must(waybill.NewContext(waybill.ContextOptions{}))(t)
	defer own.Close()
	ctx, cancel := context.WithCancel(patience(t))
	waiting, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		worker := must(waybill.NewWorker(waybill.WorkerOptions{Context: own, Manifest: manifestOf(t, 0, rows)}))(t)
		close(waiting)
		for range worker.Events(ctx) {
		}
	}()
	<-waiting
	for range 5 {
		runtime.GC()
	}
	if own.Open() != 1 {
		t.Error("it was closed")
	}
	cancel()
	<-ended
}

// The views are the memory itself, and so is what is lent.
func TestNothingIsCopied(t *testing.T) {
	j := newJob(t, jobOptions{mode: waybill.ModeInPlace})
	served := make([]uint16, rows*columns)
	region := must(waybill.NewRegion(served, waybill.RegionOptions{}))(t)
	j.workers[0].Close()
	j.workers[0] = must(waybill.NewWorker(waybill.WorkerOptions{
		Rank: j.rank(0, 1), Manifest: manifestOf(t, 0, rows), Mode: waybill.ModeInPlace, Regions: []*waybill.Region{region},
	}))(t)
	j.join()
	check(t, j.publish(1))
	snapshot := must(j.workers[0].Snapshot("test"))(t)
	if bytes := must(snapshot.Region(0))(t); unsafe.Pointer(&bytes[0]) != unsafe.Pointer(&served[0]) {
		t.Error("a snapshot in place is elsewhere")
	}
	snapshot.Close()
	j.workers[0].Close()
	region.Close()
	if served[1] != element(1, 1) {
		t.Error("the memory does not hold what was shown")
	}
}
