// SPDX-License-Identifier: Apache-2.0

package waybill_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	waybill "github.com/waybill/waybill-go"
)

// loseTheController is a trainer and a worker that log, and lose their controller.
func loseTheController(t *testing.T, log func(level waybill.LogLevel, line string)) {
	own := must(waybill.NewContext(waybill.ContextOptions{Log: log}))(t)
	t.Cleanup(own.Close)
	j := &job{TB: t, ctx: patience(t), controller: startController(t)}
	region := must(waybill.NewRegion(make([]uint16, rows*columns), waybill.RegionOptions{}))(t)
	trainer := must(waybill.NewTrainer(waybill.TrainerOptions{
		Context: own, Rank: j.rank(0, 1), Manifest: manifestOf(t, 0, rows), Regions: []*waybill.Region{region},
	}))(t)
	worker := must(waybill.NewWorker(waybill.WorkerOptions{
		Context: own, Rank: j.rank(0, 1), Manifest: manifestOf(t, 0, rows),
	}))(t)
	t.Cleanup(trainer.Close)
	t.Cleanup(worker.Close)
	j.trainers, j.workers = []*waybill.Trainer{trainer}, []*waybill.Worker{worker}
	j.join()
	j.controller.Close()
}

func TestJoiningAndLosingTheControllerAreLogged(t *testing.T) {
	type line struct {
		level waybill.LogLevel
		text  string
	}
	lines := make(chan line, 100) // More than are logged: a sink must not wait for its reader.
	loseTheController(t, func(level waybill.LogLevel, text string) { lines <- line{level, text} })
	wanted := map[line]bool{
		{waybill.LogInformation, "trainer 0 of 1 of job \"go\" has joined; worker 0: "}: true,
		{waybill.LogInformation, "worker 0 of 1 of job \"go\" has joined; trainer 0: "}: true,
		{waybill.LogWarning, "trainer 0 of 1 of job \"go\" has lost the controller, "}:  true,
		{waybill.LogWarning, "worker 0 of 1 of job \"go\" has lost the controller, "}:   true,
	}
	for ctx := patience(t); len(wanted) > 0; {
		select {
		case got := <-lines:
			for want := range wanted {
				if got.level == want.level && strings.HasPrefix(got.text, want.text) {
					delete(wanted, want)
				}
			}
		case <-ctx.Done():
			t.Fatalf("not logged: %v", wanted)
		}
	}
}

func TestAPanicOfTheLogEndsTheProgram(t *testing.T) {
	if os.Getenv("WAYBILL_TEST_PANIC") != "" {
		loseTheController(t, func(waybill.LogLevel, string) { panic("a test's") })
		<-patience(t).Done()
		return
	}
	command := exec.Command(os.Args[0], "-test.run=^TestAPanicOfTheLogEndsTheProgram$")
	command.Env = append(os.Environ(), "WAYBILL_TEST_PANIC=1")
	said, err := command.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "panic: a test's") {
		t.Errorf("%v: %s", err, said)
	}
}
