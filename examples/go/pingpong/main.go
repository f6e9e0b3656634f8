// Pingpong moves four floats: `pingpong trainer HOST:PORT` sends, `pingpong worker HOST:PORT` shows.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	waybill "github.com/waybill/waybill-go"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	ctx, role, weights, manifest := context.Background(), os.Args[1], make([]float32, 4), must(waybill.NewManifest())
	must(manifest.AddRegion("weights", 16))
	must(manifest.AddTensor("w", waybill.F32, 4))
	must(manifest.AddShard(waybill.Shard{})) // All of tensor 0, at the start of region 0.
	lent := []*waybill.Region{must(waybill.NewRegion(weights, waybill.RegionOptions{}))}
	rank := waybill.RankOptions{Controller: os.Args[2], Token: os.Getenv("WAYBILL_TOKEN")}
	if role == "trainer" {
		trainer := must(waybill.NewTrainer(waybill.TrainerOptions{Rank: rank, Manifest: manifest, Regions: lent}))
		must(0, trainer.Join(ctx))
		copy(weights, []float32{0.5, 1.5, 2.5, 3.5})
		must(0, trainer.Publish(ctx, uint64(time.Now().Unix()), waybill.PublishOptions{UntilCommitted: true}))
	} else {
		ask := waybill.AskPrepare | waybill.AskArrived | waybill.AskCommit
		worker := must(waybill.NewWorker(waybill.WorkerOptions{Rank: rank, Manifest: manifest, Regions: lent, Mode: waybill.ModeInPlace, Ask: ask}))
		must(0, worker.Join(ctx))
		for event := must(worker.Next(ctx)); must(event, event.Accept()).Kind != waybill.EventCommit; event = must(worker.Next(ctx)) {
		}
	}
	lent[0].Close() // The rank has left, and the memory is ours again.
	fmt.Printf("%s: %g %g %g %g\n", role, weights[0], weights[1], weights[2], weights[3])
}
