// SPDX-License-Identifier: Apache-2.0

package waybill_test

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	waybill "github.com/waybill/waybill-go"
)

const (
	rows    = 64
	columns = 32
)

// A job in this process: one tensor, its rows over the trainers, whole at each worker.
type job struct {
	testing.TB
	ctx        context.Context
	controller *waybill.Controller
	memory     [][]uint16
	trainers   []*waybill.Trainer
	workers    []*waybill.Worker
	regions    []*waybill.Region // The workers'.
}

type jobOptions struct {
	trainers, workers int // 0: 1.
	mode              waybill.Mode
	ask               waybill.Ask
	fetches           bool // Workers get versions when they ask, and trainers keep images.
	changes           waybill.Changes
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func manifestOf(t testing.TB, begin, end int64) *waybill.Manifest {
	m := must(waybill.NewManifest())(t)
	must(m.AddRegion("memory", uint64(end-begin)*columns*2))(t)
	must(m.AddTensor("weight", waybill.BF16, rows, columns))(t)
	must(m.AddShard(waybill.Shard{Begin: []int64{begin, 0}, End: []int64{end, columns}}))(t)
	return m
}

func patience(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func startController(t testing.TB) *waybill.Controller {
	c := must(waybill.StartController(waybill.ControllerOptions{
		Listen: "127.0.0.1:0", Job: "go", Token: "a secret of the job",
	}))(t)
	t.Cleanup(c.Close)
	return c
}

func (j *job) rank(rank, world int) waybill.RankOptions {
	return waybill.RankOptions{
		Controller: j.controller.Address(), Job: "go", Token: "a secret of the job",
		Rank: uint32(rank), World: uint32(world),
	}
}

func newJob(t testing.TB, o jobOptions) *job {
	o.trainers, o.workers = max(o.trainers, 1), max(o.workers, 1)
	j := &job{TB: t, ctx: patience(t), controller: startController(t)}
	for i := range o.trainers {
		begin, end := rows*i/o.trainers, rows*(i+1)/o.trainers
		memory := make([]uint16, (end-begin)*columns)
		region := must(waybill.NewRegion(memory, waybill.RegionOptions{ReadOnly: true}))(t)
		trainer := must(waybill.NewTrainer(waybill.TrainerOptions{
			Rank:     j.rank(i, o.trainers),
			Manifest: manifestOf(t, int64(begin), int64(end)),
			Regions:  []*waybill.Region{region},
			Images:   o.fetches,
			Changes:  o.changes,
		}))(t)
		t.Cleanup(trainer.Close)
		j.memory = append(j.memory, memory)
		j.trainers = append(j.trainers, trainer)
	}
	for i := range o.workers {
		options := waybill.WorkerOptions{
			Rank:     j.rank(i, o.workers),
			Manifest: manifestOf(t, 0, rows),
			Mode:     o.mode,
			Ask:      o.ask,

			UpdatesWhenAsked: o.fetches,
		}
		if o.mode == waybill.ModeShadowCopy || o.mode == waybill.ModeInPlace {
			region := must(waybill.NewRegion(make([]uint16, rows*columns), waybill.RegionOptions{}))(t)
			options.Regions = []*waybill.Region{region}
			j.regions = append(j.regions, region)
		}
		worker := must(waybill.NewWorker(options))(t)
		t.Cleanup(worker.Close)
		j.workers = append(j.workers, worker)
	}
	return j
}

func (j *job) join() {
	j.Helper()
	var wait sync.WaitGroup
	errs := make([]error, len(j.trainers)+len(j.workers))
	for i := range errs {
		wait.Add(1)
		go func() {
			defer wait.Done()
			if i < len(j.trainers) {
				errs[i] = j.trainers[i].Join(j.ctx)
			} else {
				errs[i] = j.workers[i-len(j.trainers)].Join(j.ctx)
			}
		}()
	}
	wait.Wait()
	check(j, errors.Join(errs...))
}

func element(version uint64, i int) uint16 {
	return uint16(version*1000 + uint64(i))
}

// publish fills all memory and publishes it; each trainer returns when its group has decided.
func (j *job) publish(version uint64) error {
	i := 0
	for _, memory := range j.memory {
		for k := range memory {
			memory[k] = element(version, i)
			i++
		}
	}
	errs := make([]error, len(j.trainers))
	var wait sync.WaitGroup
	for t := range j.trainers {
		wait.Add(1)
		go func() {
			defer wait.Done()
			errs[t] = j.trainers[t].Publish(j.ctx, version, waybill.PublishOptions{UntilCommitted: true})
		}()
	}
	wait.Wait()
	return errors.Join(errs...)
}

func (j *job) mustShow(worker int, version uint64) {
	j.Helper()
	if verified := must(j.workers[worker].Verify())(j); verified != version {
		j.Fatalf("worker %d has verified version %d, want %d", worker, verified, version)
	}
	snapshot := must(j.workers[worker].Snapshot("test"))(j)
	defer snapshot.Close()
	if snapshot.Version() != version {
		j.Fatalf("worker %d shows version %d, want %d", worker, snapshot.Version(), version)
	}
	mustHold(j, snapshot, version)
}

func mustHold(t testing.TB, snapshot *waybill.Snapshot, version uint64) {
	t.Helper()
	bytes := must(snapshot.Region(0))(t)
	if len(bytes) != rows*columns*2 {
		t.Fatalf("%d bytes", len(bytes))
	}
	for i := range rows * columns {
		if got, want := binary.NativeEndian.Uint16(bytes[2*i:]), element(version, i); got != want {
			t.Fatalf("element %d is %d, want %d", i, got, want)
		}
	}
}

func nextOf(t testing.TB, ctx context.Context, next func(context.Context) (*waybill.Event, error), kind waybill.EventKind) *waybill.Event {
	t.Helper()
	for {
		event := must(next(ctx))(t)
		if event.Kind == kind {
			return event
		}
	}
}

func TestVersionsArriveInEveryMode(t *testing.T) {
	for name, mode := range map[string]waybill.Mode{
		"shadow": waybill.ModeShadow, "shadow_copy": waybill.ModeShadowCopy, "in_place": waybill.ModeInPlace,
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, jobOptions{trainers: 2, workers: 2, mode: mode})
			j.join()
			for _, version := range []uint64{1, 2, 7} {
				check(t, j.publish(version))
				j.mustShow(0, version)
				j.mustShow(1, version)
			}
		})
	}
}

func TestAWorkersUserIsAskedInOrder(t *testing.T) {
	j := newJob(t, jobOptions{ask: waybill.AskPrepare | waybill.AskArrived | waybill.AskCommit})
	j.join()
	published := make(chan error, 1)
	go func() { published <- j.publish(3) }()
	for _, kind := range []waybill.EventKind{waybill.EventPrepare, waybill.EventArrived, waybill.EventCommit} {
		event := must(j.workers[0].Next(j.ctx))(t)
		if event.Kind != kind || event.Version != 3 || !event.AnswerWanted {
			t.Fatalf("got %+v, want %v of version 3", event, kind)
		}
		check(t, event.Accept())
		if err := event.Accept(); !errors.Is(err, waybill.ErrFailedPrecondition) {
			t.Errorf("a second answer: %v", err)
		}
		event.Close()
	}
	check(t, <-published)
	j.mustShow(0, 3)
	outcome := nextOf(t, j.ctx, j.trainers[0].Next, waybill.EventOutcome)
	if outcome.Err != nil || outcome.Group != "all" || outcome.Version != 3 {
		t.Errorf("outcome %+v", outcome)
	}
}

func TestAVersionThatWaitsForItsWordIsShownOnceItIsAccepted(t *testing.T) {
	j := newJob(t, jobOptions{})
	j.join()
	check(t, j.trainers[0].Publish(j.ctx, 1, waybill.PublishOptions{HoldCommit: true}))
	arrived := nextOf(t, j.ctx, j.trainers[0].Next, waybill.EventArrived)
	if state := must(j.workers[0].State())(t); arrived.Version != 1 || state.ShownVersion != 0 {
		t.Errorf("version %d has arrived, and version %d is shown", arrived.Version, state.ShownVersion)
	}
	check(t, arrived.Accept())
	check(t, nextOf(t, j.ctx, j.trainers[0].Next, waybill.EventDecided).Err)
	if state := must(j.workers[0].State())(t); state.ShownVersion != 1 {
		t.Errorf("version %d is shown", state.ShownVersion)
	}
}

func TestAVersionOfAPartOfTheTensorsIsNotExact(t *testing.T) {
	j := newJob(t, jobOptions{changes: waybill.ChangesAlways})
	j.join()
	for i, options := range []waybill.PublishOptions{{}, {Tensors: []string{"weight"}}, {AtMostPPM: 500_000}, {}} {
		options.UntilCommitted = true
		check(t, j.trainers[0].Publish(j.ctx, uint64(i+1), options))
		exact := len(options.Tensors) == 0 && options.AtMostPPM == 0
		if state := must(j.workers[0].State())(t); state.Exact != exact {
			t.Errorf("version %d is exact: %v", i+1, state.Exact)
		}
	}
	unknown := waybill.PublishOptions{Tensors: []string{"weight", "none"}, UntilCommitted: true}
	err := j.trainers[0].Publish(j.ctx, 5, unknown)
	mustBe(t, err, waybill.ErrInvalidArgument, `no trainer has a tensor "none"`)
}

func TestWhatIsRefusedOrVetoedNobodyShows(t *testing.T) {
	for _, refused := range []waybill.EventKind{waybill.EventPrepare, waybill.EventArrived} {
		t.Run(refused.String(), func(t *testing.T) {
			j := newJob(t, jobOptions{workers: 2, ask: waybill.AskPrepare | waybill.AskArrived})
			j.join()
			for i, worker := range j.workers {
				go func() {
					for event := range worker.Events(j.ctx) {
						if i == 1 && event.Kind == refused {
							event.Refuse("warming up")
						} else if event.AnswerWanted {
							event.Accept()
						}
					}
				}()
			}
			err := j.publish(1)
			mustBe(t, err, waybill.ErrFailedPrecondition, "warming up")
			for _, worker := range j.workers {
				if state := must(worker.State())(t); state.ShownVersion != 0 {
					t.Errorf("version %d is shown", state.ShownVersion)
				}
			}
		})
	}
}

func TestACancelledContextGivesAnUpdateUp(t *testing.T) {
	j := newJob(t, jobOptions{ask: waybill.AskPrepare})
	j.join()
	ctx, cancel := context.WithCancel(j.ctx)
	update := must(j.trainers[0].PublishAsync(ctx, 5, waybill.PublishOptions{}))(t)
	asked := nextOf(t, j.ctx, j.workers[0].Next, waybill.EventPrepare)
	if update.Err() != nil || update.Version() != 5 {
		t.Fatalf("version %d ended: %v", update.Version(), update.Err())
	}
	cancel()
	err := update.Wait(j.ctx)
	mustBe(t, err, waybill.ErrCancelled, "")
	var e *waybill.Error
	if !errors.As(err, &e) || e.Scope != waybill.ScopeUpdate || !errors.Is(err, context.Canceled) {
		t.Errorf("%#v", err)
	}
	aborted := nextOf(t, j.ctx, j.workers[0].Next, waybill.EventAbort)
	mustBe(t, aborted.Err, waybill.ErrCancelled, "")
	check(t, asked.Accept()) // Nobody waits for it any more.

	// Its version can come again.
	go func() { nextOf(t, j.ctx, j.workers[0].Next, waybill.EventPrepare).Accept() }()
	check(t, j.publish(5))
	j.mustShow(0, 5)
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	j := newJob(t, jobOptions{ask: waybill.AskPrepare})
	ctx, cancel := context.WithCancelCause(j.ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := j.workers[0].Next(ctx)
		ended <- err
	}()
	cancel(errors.New("the engine stops"))
	err := <-ended
	mustBe(t, err, waybill.ErrCancelled, "wait for an event: the engine stops")
	if !errors.Is(err, context.Cause(ctx)) {
		t.Errorf("%v is not the cause", err)
	}
	for range j.workers[0].Events(ctx) {
		t.Error("an event")
	}
	mustBe(t, j.workers[0].Join(ctx), waybill.ErrCancelled, "join: the engine stops")
	j.join()

	late, cancelLate := context.WithCancel(j.ctx)
	update := must(j.trainers[0].PublishAsync(j.ctx, 1, waybill.PublishOptions{}))(t)
	cancelLate()
	mustBe(t, update.Wait(late), waybill.ErrCancelled, "wait for a publish")
	nextOf(t, j.ctx, j.workers[0].Next, waybill.EventPrepare).Accept()
	check(t, update.Wait(j.ctx))
}

func TestAJoinEndsWithItsDeadline(t *testing.T) {
	j := newJob(t, jobOptions{trainers: 2})
	ctx, cancel := context.WithTimeout(j.ctx, 200*time.Millisecond)
	defer cancel()
	err := j.workers[0].Join(ctx)
	mustBe(t, err, waybill.ErrDeadlineExceeded, "is not whole: waiting for")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is no context.DeadlineExceeded", err)
	}
}

func TestAPublishEndsWithItsDeadlineAndSaysWhoIsLate(t *testing.T) {
	j := newJob(t, jobOptions{ask: waybill.AskPrepare})
	j.join()
	ctx, cancel := context.WithTimeout(j.ctx, 50*time.Millisecond)
	defer cancel()
	err := j.trainers[0].Publish(ctx, 1, waybill.PublishOptions{}) // Nobody accepts.
	mustBe(t, err, waybill.ErrDeadlineExceeded, "worker 0")
}

func TestAVersionThatIsHeldIsReleasedBeforeTheNextIsPublished(t *testing.T) {
	j := newJob(t, jobOptions{})
	j.join()
	held := waybill.PublishOptions{UntilCommitted: true, Hold: true}
	check(t, j.trainers[0].Publish(j.ctx, 1, held))
	err := j.trainers[0].Publish(j.ctx, 2, waybill.PublishOptions{})
	mustBe(t, err, waybill.ErrFailedPrecondition, "version 1 is held; release it first")
	check(t, j.trainers[0].Release(j.ctx))
	check(t, j.trainers[0].Publish(j.ctx, 2, waybill.PublishOptions{UntilCommitted: true}))
}

func TestAWorkerGetsTheNewestVersionWhenItAsks(t *testing.T) {
	j := newJob(t, jobOptions{fetches: true})
	j.join()
	soon, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := j.workers[0].Fetch(soon, 0)
	mustBe(t, err, waybill.ErrDeadlineExceeded, "no version can be had yet")
	for _, version := range []uint64{2, 4} {
		check(t, j.publish(version-1))
		check(t, j.publish(version))
		if fetched := must(j.workers[0].Fetch(j.ctx, version))(t); fetched != version {
			t.Fatalf("version %d was fetched, want %d", fetched, version)
		}
		j.mustShow(0, version)
	}
}

func TestAPublishThatOneGroupRefusesSaysWhichGroupsShowIt(t *testing.T) {
	j := newJob(t, jobOptions{})
	rank := j.rank(0, 1)
	rank.Group = "b"
	other := must(waybill.NewWorker(waybill.WorkerOptions{
		Rank: rank, Manifest: manifestOf(t, 0, rows), Ask: waybill.AskArrived,
	}))(t)
	t.Cleanup(other.Close)
	j.join()
	check(t, other.Join(j.ctx))
	go func() { nextOf(t, j.ctx, other.Next, waybill.EventArrived).Refuse("not today") }()
	err := j.trainers[0].Publish(j.ctx, 1, waybill.PublishOptions{UntilCommitted: true})
	mustBe(t, err, waybill.ErrFailedPrecondition, "not today")
	var failed *waybill.Error
	if !errors.As(err, &failed) || len(failed.Outcomes) != 2 || failed.Outcomes["all"] != nil {
		t.Fatalf("%v: %v", err, failed.Outcomes)
	}
	mustBe(t, failed.Outcomes["b"], waybill.ErrFailedPrecondition, "not today")
	if state := must(j.workers[0].State())(t); state.ShownVersion != 1 {
		t.Errorf("%+v", state)
	}
}

func TestATrainerIsToldOfAWorkerThatItsGroupHasLost(t *testing.T) {
	j := newJob(t, jobOptions{workers: 2})
	j.join()
	j.workers[1].Close()
	lost := nextOf(t, j.ctx, j.trainers[0].Next, waybill.EventWorkerLost)
	mustBe(t, lost.Err, waybill.ErrUnavailable, "worker 1")
	if lost.Group != "all" {
		t.Error(lost.Group)
	}
}

func TestAVersionWithTheBytesOfTheOneBeforeIsUnchanged(t *testing.T) {
	j := newJob(t, jobOptions{})
	j.join()
	for version := uint64(1); version <= 2; version++ {
		check(t, j.trainers[0].Publish(j.ctx, version, waybill.PublishOptions{UntilCommitted: true}))
		outcome := nextOf(t, j.ctx, j.trainers[0].Next, waybill.EventOutcome)
		if outcome.Unchanged != (version == 2) {
			t.Errorf("version %d: unchanged: %v", version, outcome.Unchanged)
		}
	}
	if state := must(j.workers[0].State())(t); state.UnchangedVersions != 1 {
		t.Errorf("%+v", state)
	}
}

func TestAPublishAfterAnEventIsOfMemoryOfADevice(t *testing.T) {
	j := newJob(t, jobOptions{})
	j.join()
	// What stands in for the event is not looked at, but may not be Go's memory.
	event := must(syscall.Mmap(-1, 0, 1, syscall.PROT_READ, syscall.MAP_PRIVATE|syscall.MAP_ANON))(t)
	defer func() { check(t, syscall.Munmap(event)) }()
	err := j.trainers[0].Publish(j.ctx, 1, waybill.PublishOptions{AfterEvent: unsafe.Pointer(&event[0])})
	mustBe(t, err, waybill.ErrInvalidArgument, "no region is memory of a device")
}

func TestASnapshotOutlivesItsWorker(t *testing.T) {
	j := newJob(t, jobOptions{})
	j.join()
	check(t, j.publish(4))
	snapshot := must(j.workers[0].Snapshot("eval"))(t)
	j.workers[0].Close()
	mustHold(t, snapshot, 4)
	_, err := snapshot.Region(1)
	mustBe(t, err, waybill.ErrOutOfRange, "region 1 of 1")
	snapshot.Close()
	_, err = snapshot.Region(0)
	mustBe(t, err, waybill.ErrInvalidArgument, "snapshot is no such handle: it was destroyed")
}

func TestAWorkerThatIsPausedTakesNoUpdateUntilItIsResumed(t *testing.T) {
	j := newJob(t, jobOptions{mode: waybill.ModeInPlace})
	j.join()
	check(t, j.publish(1))
	check(t, j.workers[0].Pause())
	_, err := j.workers[0].Snapshot("eval")
	mustBe(t, err, waybill.ErrFailedPrecondition, "the worker is paused")
	mustBe(t, j.publish(2), waybill.ErrFailedPrecondition, "the worker is paused")
	check(t, j.workers[0].Resume(true))
	snapshot := must(j.workers[0].Snapshot("eval"))(t)
	mustHold(t, snapshot, 1)
	snapshot.Close()
	check(t, j.publish(3))
}

func TestClosingEndsWhatWaits(t *testing.T) {
	j := newJob(t, jobOptions{})
	joined := make(chan error, 1)
	go func() { joined <- j.trainers[0].Join(j.ctx) }() // No worker comes.
	waited := make(chan error, 1)
	go func() {
		_, err := j.trainers[0].Next(j.ctx)
		waited <- err
	}()
	j.trainers[0].Close()
	mustBe(t, <-waited, waybill.ErrCancelled, "")
	// Closed before it began to join, or while it did.
	if err := <-joined; !errors.Is(err, waybill.ErrCancelled) && !errors.Is(err, waybill.ErrInvalidArgument) {
		t.Error(err)
	}
}

func TestRanksLiveThroughARestartOfTheController(t *testing.T) {
	j := newJob(t, jobOptions{})
	j.join()
	check(t, j.publish(1))
	ranks := []func(context.Context) (*waybill.Event, error){j.trainers[0].Next, j.workers[0].Next}
	options := waybill.ControllerOptions{Listen: j.controller.Address(), Job: "go", Token: "a secret of the job"}
	j.controller.Close()
	for _, next := range ranks {
		lost := nextOf(t, j.ctx, next, waybill.EventDisconnected)
		mustBe(t, lost.Err, waybill.ErrUnavailable, options.Listen)
	}
	j.mustShow(0, 1)
	defer must(waybill.StartController(options))(t).Close()
	check(t, j.publish(2))
	for _, next := range ranks {
		if back := nextOf(t, j.ctx, next, waybill.EventReconnected); back.Err != nil {
			t.Error(back.Err)
		}
	}
	j.mustShow(0, 2)
}

func TestARegionThatIsTakenBackEndsTheRanksThatUseIt(t *testing.T) {
	j := newJob(t, jobOptions{mode: waybill.ModeInPlace, ask: waybill.AskPrepare})
	j.join()
	update := must(j.trainers[0].PublishAsync(j.ctx, 1, waybill.PublishOptions{}))(t)
	nextOf(t, j.ctx, j.workers[0].Next, waybill.EventPrepare)
	j.regions[0].Close()
	if update.Wait(j.ctx) == nil {
		t.Error("it was published to nobody")
	}
	mustBe(t, j.workers[0].Join(j.ctx), waybill.ErrFailedPrecondition, "it has left")
}

func TestALeaverCanStillBeRead(t *testing.T) {
	j := newJob(t, jobOptions{})
	j.join()
	check(t, j.publish(1))
	check(t, j.workers[0].Leave(j.ctx))
	j.mustShow(0, 1)
	mustBe(t, j.workers[0].Leave(j.ctx), waybill.ErrFailedPrecondition, "it has left")
	check(t, j.trainers[0].Leave(j.ctx))
}

func TestTheManifestOfARankSaysWhichRackItsHostIsIn(t *testing.T) {
	worker := must(waybill.NewWorker(waybill.WorkerOptions{
		Rank:     waybill.RankOptions{Rack: "leaf-1"},
		Manifest: manifestOf(t, 0, rows),
	}))(t)
	defer worker.Close()
	if said := string(must(worker.Describe())(t)); !strings.Contains(said, `"rack":"leaf-1"`) {
		t.Error(said)
	}
}

func TestAContextThatIsClosedClosesItsRanks(t *testing.T) {
	own := must(waybill.NewContext(waybill.ContextOptions{}))(t)
	must(own.Describe())(t)
	worker := must(waybill.NewWorker(waybill.WorkerOptions{Context: own, Manifest: manifestOf(t, 0, rows)}))(t)
	own.Close()
	_, err := worker.Next(patience(t))
	mustBe(t, err, waybill.ErrCancelled, "it was closed")
	_, err = waybill.NewWorker(waybill.WorkerOptions{Context: own, Manifest: manifestOf(t, 0, rows)})
	mustBe(t, err, waybill.ErrInvalidArgument, "context is no such handle")
	worker.Close()
	own.Close()
}
