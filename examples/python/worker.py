"""An inference engine's side: it shows each version of the weights that the trainers publish.

It also runs the job's controller, which the trainers need until they have left, so it ends when its standard input does.

python worker.py                                      on one terminal: says where its controller is (Ctrl-D ends it)
torchrun --nproc-per-node=4 fsdp2_trainer.py ADDRESS  on another

An engine has its weights already; here they are made as large as the model's.
"""

import argparse
import sys

import waybill

SHAPES = {
    "0.weight": (33, 16),
    "0.bias": (33,),
    "2.weight": (10, 33),
    "2.bias": (10,),
}


def report(worker):
    # Held for the time of the `with`: an update never changes what is being read.
    with worker.snapshot() as snapshot:
        total = sum(float(snapshot[name].sum()) for name in SHAPES)
        print(f"version {snapshot.version}: the weights add up to {total:.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", type=int, default=3, help="how many to wait for")
    arguments = parser.parse_args()
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        print(controller.address, flush=True)
        with waybill.Worker(controller.address, rank=0, world=1, ask=["commit"]) as worker:
            for name, shape in SHAPES.items():
                worker.add(name, shape=shape, dtype="float32")
            worker.join()
            for event in worker.events():
                if isinstance(event, waybill.Commit):
                    report(worker)
                    event.shown()
                    if event.version == arguments.versions:
                        break
            worker.leave()
        sys.stdin.read()


if __name__ == "__main__":
    main()
