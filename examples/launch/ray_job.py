"""Starts a job on a Ray cluster: `python ray_job.py` runs a controller, two trainers and an engine of two ranks as actors.

The actors stand for your trainers and your engine. Each moves a tensor of its own, and shows it after each version.
"""

import numpy
import ray
import waybill
from waybill.integrations import ray as waybill_ray


@ray.remote(num_cpus=0, max_restarts=-1)
class Trainer:
    """A rank of your trainer."""

    def join(self):
        identity = waybill_ray.identity_here("rl")
        self.weights = numpy.zeros(4, numpy.float32)
        self.trainer = waybill.Trainer(**identity)
        self.trainer.add(f"layer.{identity['rank']}", self.weights)
        self.trainer.join()

    def step(self, version):
        self.weights += 0.5  # Your optimizer.
        self.trainer.publish(version).committed.wait(60)


@ray.remote(num_cpus=0, max_restarts=-1)
class Engine:
    """A rank of your inference engine."""

    def join(self, layers):
        self.tensors = {f"layer.{i}": numpy.zeros(4, numpy.float32) for i in range(layers)}
        self.worker = waybill.Worker(mode="shadow-copy", **waybill_ray.identity_here("rl"))
        for name, tensor in self.tensors.items():
            self.worker.add(name, tensor)
        self.worker.join()

    def show(self, version):
        self.worker.await_version(version, 60)
        return {name: tensor.tolist() for name, tensor in self.tensors.items()}


def main():
    ray.init(include_dashboard=False)  # On a cluster: ray.init("auto").
    waybill_ray.controller("rl")
    trainers, engine = [Trainer.remote() for _ in range(2)], [Engine.remote() for _ in range(2)]
    waybill_ray.identity(trainers, job="rl")
    waybill_ray.identity(engine, job="rl", group="engine-0")
    ray.get(
        [trainer.join.remote() for trainer in trainers] + [rank.join.remote(2) for rank in engine]
    )
    for version in (1, 2, 3):
        ray.get([trainer.step.remote(version) for trainer in trainers])
        print(f"version {version}:", ray.get(engine[0].show.remote(version)), flush=True)
    waybill_ray.close("rl")


if __name__ == "__main__":
    main()
