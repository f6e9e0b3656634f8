# SPDX-License-Identifier: Apache-2.0
"""Tests jobs inside Ray: the published package, real actors, and one of them killed.

python ray_jobs.py
"""

import ray

TRAINERS, WORKERS, SIZE = 2, 2, 1000


def weights_of(version, trainer):
    import numpy

    return numpy.arange(SIZE, dtype=numpy.float32) + 10 * version + trainer


@ray.remote(num_cpus=0)
class Trainer:
    """One of two trainers, each with a tensor of its own."""

    def join(self):
        import waybill
        from waybill.integrations import ray as waybill_ray

        identity = waybill_ray.identity_here("rl")
        self.rank, self.weights = identity["rank"], weights_of(0, identity["rank"])
        self.trainer = waybill.Trainer(**identity)
        self.trainer.add(f"w{self.rank}", self.weights)
        self.trainer.join(60)

    def publish(self, version):
        self.weights[:] = weights_of(version, self.rank)
        self.trainer.publish(version, deadline=60).committed.wait(60)


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Worker:
    """One of two workers, which have all tensors."""

    def join(self):
        import numpy
        import waybill
        from waybill.integrations import ray as waybill_ray

        self.tensors = {f"w{t}": numpy.zeros(SIZE, numpy.float32) for t in range(TRAINERS)}
        self.worker = waybill.Worker(mode="shadow-copy", **waybill_ray.identity_here("rl"))
        for name, tensor in self.tensors.items():
            self.worker.add(name, tensor)
        self.worker.join(60)

    def check(self, version):
        self.worker.await_version(version, 60)
        for trainer in range(TRAINERS):
            assert (self.tensors[f"w{trainer}"] == weights_of(version, trainer)).all(), version
        return version


def main():
    import waybill
    from waybill.integrations import ray as waybill_ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=True)
    address = waybill_ray.controller("rl")
    assert waybill_ray.controller("rl") == address, "a job has one controller"
    trainers = [Trainer.remote() for _ in range(TRAINERS)]
    workers = [Worker.remote() for _ in range(WORKERS)]
    try:
        ray.get(trainers[0].join.remote())
        raise SystemExit("an actor without identity has joined")
    except waybill.NotFound as error:
        print("refused:", str(error).splitlines()[-1], flush=True)
    waybill_ray.identity(trainers, job="rl")
    waybill_ray.identity(workers, job="rl", group="rollout-0")
    ray.get([actor.join.remote() for actor in [*trainers, *workers]])
    for version in (1, 2):
        ray.get([trainer.publish.remote(version) for trainer in trainers])
        assert ray.get([worker.check.remote(version) for worker in workers]) == [version] * WORKERS
        print(f"version {version}: right on {WORKERS} workers", flush=True)
    ray.kill(workers[0], no_restart=False)
    ray.get(workers[0].join.remote())  # Ray has started the actor again.
    ray.get([trainer.publish.remote(3) for trainer in trainers])
    assert ray.get([worker.check.remote(3) for worker in workers]) == [3] * WORKERS
    print("version 3: right after a worker was killed and came back", flush=True)
    assert waybill_ray.status("rl")["committed_version"] == 3
    waybill_ray.close("rl")


if __name__ == "__main__":
    main()
