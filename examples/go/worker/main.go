// Worker is an inference rank that shows what trainers publish: for each version it prints
// "shown VERSION DIGEST", FNV-1a in 64 bits over all the bytes that it holds.
package main

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/signal"
	"syscall"

	waybill "github.com/waybill/waybill-go"
)

var (
	controller = flag.String("controller", "", "address and port; 127.0.0.1:7070 by default")
	job        = flag.String("job", "", "its name")
	rank       = flag.Uint("rank", 0, "this worker's")
	world      = flag.Uint("world", 1, "how many workers the group has")
	group      = flag.String("group", "", "its workers switch together; all by default")
	manifest   = flag.String("manifest", "", "a file with what this rank holds, as Manifest.Encode makes it, or else:")
	checkpoint = flag.String("checkpoint", "", "the folder of the model that is served")
	sharding   = flag.String("sharding", "", "of the checkpoint: tp=2,dp=1")
	versions   = flag.Int("versions", 0, "leave after so many; 0: serve until it is stopped")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context) error {
	held, err := readManifest()
	if err != nil {
		return err
	}
	worker, err := waybill.NewWorker(waybill.WorkerOptions{
		Rank: waybill.RankOptions{
			Controller: *controller, Job: *job, Token: os.Getenv("WAYBILL_TOKEN"),
			Group: *group, Rank: uint32(*rank), World: uint32(*world),
		},
		Manifest: held,
		Ask:      waybill.AskCommit, // The next version waits until this one's digest is known.
	})
	if err != nil {
		return err
	}
	defer worker.Close()
	if err := worker.Join(ctx); err != nil {
		return err
	}
	shown := 0
	for event := range worker.Events(ctx) {
		switch event.Kind {
		case waybill.EventCommit:
			if err := report(worker, held.RegionCount()); err != nil {
				return err
			}
			if err := event.Accept(); err != nil {
				return err
			}
			if shown++; shown == *versions {
				return worker.Leave(ctx)
			}
		case waybill.EventEnded:
			return event.Err
		}
	}
	return ctx.Err()
}

func readManifest() (*waybill.Manifest, error) {
	if *manifest != "" {
		bytes, err := os.ReadFile(*manifest)
		if err != nil {
			return nil, err
		}
		return waybill.DecodeManifest(bytes)
	}
	layout, err := waybill.OpenLayout(waybill.LayoutOptions{Checkpoint: *checkpoint})
	if err != nil {
		return nil, err
	}
	defer layout.Close()
	return layout.WorkerManifest(waybill.WorkerLayout{Sharding: *sharding}, uint32(*rank))
}

func report(worker *waybill.Worker, regions int) error {
	snapshot, err := worker.Snapshot("digest")
	if err != nil {
		return err
	}
	defer snapshot.Close()
	digest := fnv.New64a()
	for i := range regions {
		bytes, err := snapshot.Region(i)
		if err != nil {
			return err
		}
		digest.Write(bytes)
	}
	_, err = fmt.Printf("shown %d %016x\n", snapshot.Version(), digest.Sum64())
	return err
}
