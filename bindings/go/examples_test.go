// SPDX-License-Identifier: Apache-2.0

package waybill_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// program is one of those of examples/go.
func program(t *testing.T, folder string) string {
	file := filepath.Join(t.TempDir(), "program")
	// With -race, so that the standard library is the tests' own.
	if said, err := exec.Command("go", "build", "-race", "-o", file, folder).CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v: %s", folder, err, said)
	}
	return file
}

func TestPingArrives(t *testing.T) {
	ping := program(t, "./examples")
	said, err := exec.CommandContext(patience(t), ping).CombinedOutput()
	if want := "version 1: 00 00 28 42\n"; err != nil || string(said) != want {
		t.Errorf("%v: %q, want %q", err, said, want)
	}
}

func TestTheReadMeShowsPing(t *testing.T) {
	readMe, ping := must(os.ReadFile("README.md"))(t), must(os.ReadFile("examples/ping.go"))(t)
	if !bytes.Contains(readMe, append([]byte("```go\n"), ping...)) {
		t.Error("README.md does not have examples/ping.go as it is")
	}
}

func TestAWorkerProgramTellsWhatItShows(t *testing.T) {
	file := program(t, "./examples/worker")
	j := newJob(t, jobOptions{})
	j.workers[0].Close() // The program is it.
	manifest := filepath.Join(t.TempDir(), "manifest")
	check(t, os.WriteFile(manifest, must(manifestOf(t, 0, rows).Encode())(t), 0o600))
	worker := exec.CommandContext(j.ctx, file, "--controller", j.controller.Address(), "--job", "go",
		"--manifest", manifest, "--versions", "2")
	worker.Stderr, worker.Env = os.Stderr, append(os.Environ(), "WAYBILL_TOKEN=a secret of the job")
	lines := bufio.NewScanner(must(worker.StdoutPipe())(t))
	check(t, worker.Start())
	check(t, j.trainers[0].Join(j.ctx))
	for version := uint64(1); version <= 2; version++ {
		check(t, j.publish(version))
		digest := fnv.New64a()
		check(t, binary.Write(digest, binary.NativeEndian, j.memory[0]))
		want := fmt.Sprintf("shown %d %016x", version, digest.Sum64())
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("%q, want %q", lines.Text(), want)
		}
	}
	check(t, worker.Wait())
}
