// Ping moves a tensor from a trainer to a worker, both of them in this program.
package main

import (
	"context"
	"fmt"
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
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	controller := must(waybill.StartController(waybill.ControllerOptions{Listen: "127.0.0.1:0"}))
	defer controller.Close()
	rank := waybill.RankOptions{Controller: controller.Address()}
	manifest, weights := must(waybill.NewManifest()), make([]float32, 1<<20)
	must(manifest.AddRegion("weights", uint64(len(weights)*4)))
	must(manifest.AddTensor("w", waybill.F32, 1024, 1024))
	must(manifest.AddShard(waybill.Shard{})) // All of tensor 0, at the begin of region 0.
	lent := must(waybill.NewRegion(weights, waybill.RegionOptions{}))
	trainer := must(waybill.NewTrainer(waybill.TrainerOptions{Rank: rank, Manifest: manifest, Regions: []*waybill.Region{lent}}))
	worker := must(waybill.NewWorker(waybill.WorkerOptions{Rank: rank, Manifest: manifest}))
	defer trainer.Close()
	defer worker.Close()
	go func() { must(0, worker.Join(ctx)) }()
	must(0, trainer.Join(ctx))
	weights[0] = 42
	must(0, trainer.Publish(ctx, 1, waybill.PublishOptions{UntilCommitted: true}))
	shown := must(worker.Snapshot("ping"))
	defer shown.Close()
	fmt.Printf("version %d: % x\n", shown.Version(), must(shown.Region(0))[:4])
}
