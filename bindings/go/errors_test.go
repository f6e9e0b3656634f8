// SPDX-License-Identifier: Apache-2.0

package waybill_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unsafe"

	waybill "github.com/waybill/waybill-go"
)

// mustBe holds an error to its code and to a part of the library's message.
func mustBe(t testing.TB, err error, code waybill.Code, message string) {
	t.Helper()
	if !errors.Is(err, code) || !strings.Contains(err.Error(), message) {
		t.Errorf("got %v, want %v with %q", err, code, message)
	}
}

// Each says something wrong; the library's message comes unchanged.
func TestWhatIsWrongIsSaid(t *testing.T) {
	good := manifestOf(t, 0, rows)
	region := must(waybill.NewRegion(make([]uint16, rows*columns), waybill.RegionOptions{Name: "lent"}))(t)
	onlyRead := must(waybill.NewRegion(make([]uint16, rows*columns), waybill.RegionOptions{Name: "fixed", ReadOnly: true}))(t)
	var nothing waybill.Manifest
	newWorker := func(o waybill.WorkerOptions) error {
		if o.Manifest == nil {
			o.Manifest = good
		}
		_, err := waybill.NewWorker(o)
		return err
	}
	for name, c := range map[string]struct {
		do      func() error
		code    waybill.Code
		message string
	}{
		"a name that is empty": {func() error {
			_, err := must(waybill.NewManifest())(t).AddRegion("", 8)
			return err
		}, waybill.ErrInvalidArgument, "name"},
		"a name with a zero inside": {func() error {
			_, err := must(waybill.NewManifest())(t).AddRegion("a\x00b", 8)
			return err
		}, waybill.ErrInvalidArgument, "not UTF-8"},
		"a manifest that was closed": {func() error {
			m := must(waybill.NewManifest())(t)
			m.Close()
			_, err := m.AddRegion("r", 8)
			return err
		}, waybill.ErrInvalidArgument, "manifest is no such handle: it was destroyed, or is of another kind"},
		"a manifest that is none": {func() error {
			_, err := nothing.AddRegion("r", 8)
			return err
		}, waybill.ErrInvalidArgument, "manifest is NULL"},
		"a worker without a manifest": {func() error {
			_, err := waybill.NewWorker(waybill.WorkerOptions{})
			return err
		}, waybill.ErrInvalidArgument, "manifest is NULL"},
		"a negative extent": {func() error {
			_, err := must(waybill.NewManifest())(t).AddTensor("w", waybill.F32, -1)
			return err
		}, waybill.ErrInvalidArgument, "-1"},
		"too many dimensions": {func() error {
			_, err := must(waybill.NewManifest())(t).AddTensor("w", waybill.F32, make([]int64, 9)...)
			return err
		}, waybill.ErrInvalidArgument, "9"},
		"a box whose ends are fewer": {func() error {
			_, err := good.AddShard(waybill.Shard{Begin: []int64{0, 0}, End: []int64{1}})
			return err
		}, waybill.ErrInvalidArgument, "2 1"},
		"a shape that overflows": {func() error {
			m := must(waybill.NewManifest())(t)
			must(m.AddRegion("memory", 8))(t)
			must(m.AddTensor("w", waybill.F32, math.MaxInt64, 8))(t)
			must(m.AddShard(waybill.Shard{}))(t)
			return newWorker(waybill.WorkerOptions{Manifest: m})
		}, waybill.ErrInvalidArgument, "\"w\""},
		"memory that overflows": {func() error {
			_, err := waybill.NewRegionAt(unsafe.Pointer(&[1]byte{}), math.MaxUint64, waybill.RegionOptions{Name: "huge"})
			return err
		}, waybill.ErrInvalidArgument, `"huge": 18446744073709551615 bytes from there go beyond the address space`},
		"memory that is nowhere": {func() error {
			_, err := waybill.NewRegionAt(nil, 8, waybill.RegionOptions{Name: "none"})
			return err
		}, waybill.ErrInvalidArgument, `"none": data is NULL and size_bytes 8`},
		"a region of another size": {func() error {
			short := must(waybill.NewRegion(make([]byte, 7), waybill.RegionOptions{Name: "short"}))(t)
			return newWorker(waybill.WorkerOptions{Mode: waybill.ModeInPlace, Regions: []*waybill.Region{short}})
		}, waybill.ErrInvalidArgument, `regions[0], "short" for "memory": it has 7 bytes, the manifest says 4096`},
		"a region to be written that is read-only": {func() error {
			return newWorker(waybill.WorkerOptions{Mode: waybill.ModeInPlace, Regions: []*waybill.Region{onlyRead}})
		}, waybill.ErrInvalidArgument, `it is read-only`},
		"regions that overlap": {func() error {
			m := must(waybill.NewManifest())(t)
			must(m.AddRegion("a", rows*columns*2))(t)
			must(m.AddRegion("b", rows*columns*2))(t)
			must(m.AddPadding(waybill.Padding{Region: 0, Extents: []int64{rows * columns * 2}}))(t)
			must(m.AddPadding(waybill.Padding{Region: 1, Extents: []int64{rows * columns * 2}}))(t)
			return newWorker(waybill.WorkerOptions{
				Manifest: m, Mode: waybill.ModeInPlace, Regions: []*waybill.Region{region, region},
			})
		}, waybill.ErrInvalidArgument, `regions "lent" and "lent" overlap`},
		"a region that is none": {func() error {
			return newWorker(waybill.WorkerOptions{Mode: waybill.ModeInPlace, Regions: []*waybill.Region{nil}})
		}, waybill.ErrInvalidArgument, "regions[0] is NULL"},
		"a shadow of the caller's memory": {func() error {
			return newWorker(waybill.WorkerOptions{Regions: []*waybill.Region{region}})
		}, waybill.ErrInvalidArgument, "shows buffers that Waybill allocates"},
		"a worker that holds nothing": {func() error {
			return newWorker(waybill.WorkerOptions{Manifest: must(waybill.NewManifest())(t)})
		}, waybill.ErrInvalidArgument, "the worker holds nothing"},
		"a rank beyond its world": {func() error {
			return newWorker(waybill.WorkerOptions{Rank: waybill.RankOptions{Rank: 3, World: 2}})
		}, waybill.ErrInvalidArgument, "rank.rank is 3, rank.world 2: ranks begin at 0"},
		"a network that is none": {func() error {
			return newWorker(waybill.WorkerOptions{Rank: waybill.RankOptions{Fabric: "smoke"}})
		}, waybill.ErrInvalidArgument, "smoke"},
		"a controller for all without a token": {func() error {
			_, err := waybill.StartController(waybill.ControllerOptions{Listen: "0.0.0.0:0"})
			return err
		}, waybill.ErrInvalidArgument, "token"},
		"a model that is none": {func() error {
			_, err := waybill.OpenLayout(waybill.LayoutOptions{Model: "gpt0"})
			return err
		}, waybill.ErrInvalidArgument, "gpt0"},
		"a quantisation that is none": {func() error {
			_, err := waybill.QuantisationNamed("fp7")
			return err
		}, waybill.ErrInvalidArgument, "mxfp8"},
		"bytes that are no manifest": {func() error {
			_, err := waybill.DecodeManifest([]byte("manifest"))
			return err
		}, waybill.ErrInvalidArgument, "manifest"},
		"a controller that is nowhere": {func() error {
			_, err := waybill.QueryController(patience(t), "127.0.0.1:1", "")
			return err
		}, waybill.ErrUnavailable, "127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) { mustBe(t, c.do(), c.code, c.message) })
	}
}

func TestCallsOutOfOrderAreRefused(t *testing.T) {
	j := newJob(t, jobOptions{})
	publish := func(version uint64) error {
		return j.trainers[0].Publish(j.ctx, version, waybill.PublishOptions{})
	}
	mustBe(t, publish(1), waybill.ErrFailedPrecondition, "publish: version 1: it has not joined")
	_, err := j.workers[0].Snapshot("test")
	mustBe(t, err, waybill.ErrFailedPrecondition, "nothing is shown: it has not joined")

	past, cancel := context.WithDeadline(j.ctx, time.Now().Add(-time.Second))
	defer cancel()
	mustBe(t, j.trainers[0].Join(past), waybill.ErrDeadlineExceeded, "join as a trainer: the deadline was")

	j.join()
	mustBe(t, j.trainers[0].Join(j.ctx), waybill.ErrFailedPrecondition, "it has joined, or is joining")
	_, err = j.workers[0].Snapshot("test")
	mustBe(t, err, waybill.ErrFailedPrecondition, "no version is shown yet")
	check(t, j.publish(2))
	for _, version := range []uint64{1, 2} {
		mustBe(t, publish(version), waybill.ErrFailedPrecondition, "version 2 was published; versions only grow")
	}
	mustBe(t, publish(0), waybill.ErrInvalidArgument, "0")
	err = j.trainers[0].Publish(past, 3, waybill.PublishOptions{})
	mustBe(t, err, waybill.ErrDeadlineExceeded, "publish: version 3: the deadline was")

	check(t, j.trainers[0].Leave(j.ctx))
	mustBe(t, publish(3), waybill.ErrFailedPrecondition, "it has left")
	mustBe(t, j.trainers[0].Join(j.ctx), waybill.ErrFailedPrecondition, "it has left: a rank that joins again is made anew")
	j.trainers[0].Close()
	mustBe(t, publish(3), waybill.ErrInvalidArgument, "trainer is no such handle: it was destroyed")
	j.trainers[0].Close()
}

func TestARankIsThereOnce(t *testing.T) {
	j := newJob(t, jobOptions{workers: 2})
	twin := must(waybill.NewWorker(waybill.WorkerOptions{Rank: j.rank(0, 2), Manifest: manifestOf(t, 0, rows)}))(t)
	defer twin.Close()
	first := make(chan error, 2)
	go func() { first <- j.workers[0].Join(j.ctx) }()
	go func() { first <- twin.Join(j.ctx) }()
	// The other trainer and worker are not there: only a refusal ends a join.
	mustBe(t, <-first, waybill.ErrAlreadyExists, "0")

	wrong := j.rank(1, 2)
	wrong.Token = "a guess of the secret"
	stranger := must(waybill.NewWorker(waybill.WorkerOptions{Rank: wrong, Manifest: manifestOf(t, 0, rows)}))(t)
	defer stranger.Close()
	mustBe(t, stranger.Join(j.ctx), waybill.ErrUnauthenticated, "token")
}

func TestAnErrorMatchesItsCodeOnly(t *testing.T) {
	err := error(&waybill.Error{Code: waybill.ErrUnavailable, Scope: waybill.ScopePeer, Message: "gone"})
	if got, want := err.Error(), "UNAVAILABLE: gone"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for target, want := range map[error]bool{
		waybill.ErrUnavailable:   true,
		waybill.ErrNotFound:      false,
		context.Canceled:         false,
		context.DeadlineExceeded: false,
	} {
		if errors.Is(err, target) != want {
			t.Errorf("errors.Is(%v, %v) is not %v", err, target, want)
		}
	}
}

func TestAPublishWaitsForTheDecisionAboutTheOneBefore(t *testing.T) {
	j := newJob(t, jobOptions{ask: waybill.AskArrived})
	j.join()
	check(t, j.trainers[0].Publish(j.ctx, 1, waybill.PublishOptions{}))
	soon, cancel := context.WithTimeout(j.ctx, 50*time.Millisecond)
	defer cancel()
	late := j.trainers[0].Publish(soon, 2, waybill.PublishOptions{})
	mustBe(t, late, waybill.ErrDeadlineExceeded, "publish version 2")
	next := must(j.trainers[0].PublishAsync(j.ctx, 3, waybill.PublishOptions{UntilCommitted: true}))(t)
	for _, version := range []uint64{1, 3} {
		arrived := nextOf(t, j.ctx, j.workers[0].Next, waybill.EventArrived)
		if arrived.Version != version {
			t.Fatalf("version %d has arrived, want %d", arrived.Version, version)
		}
		check(t, arrived.Accept())
	}
	check(t, next.Wait(j.ctx))
}
