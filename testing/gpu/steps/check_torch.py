# SPDX-License-Identifier: Apache-2.0
"""The wheel and torch: a trainer's process and a worker's, on one GPU; every element is compared.

Sections run in processes of their own, because an allocator is chosen once a process. On a machine without a GPU a
rehearsal runs what torch can do on the host.
"""

import importlib.metadata
import os
import statistics
import sys
import tempfile
import threading
import time
import traceback

import checks

SHAPES = {  # Shape, the trainer's dtype, the worker's, and whether the worker's is transposed.
    "large": ((8192, 4096), "bfloat16", "bfloat16", False),
    "larger": ((16384, 4096), "bfloat16", "bfloat16", False),
    "odd": ((1001, 777), "float32", "float32", False),
    "small": ((100,), "bfloat16", "bfloat16", False),
    "cast": ((4096, 1024), "float32", "bfloat16", False),
    "turned": ((4096, 1024), "bfloat16", "bfloat16", True),
}
SMALL_SHAPES = {
    name: (tuple(max(1, n // 64) for n in shape), *rest) for name, (shape, *rest) in SHAPES.items()
}
MODEL = SMALL_SHAPES if checks.SMALL else SHAPES
FILLED = 1 << (16 if checks.SMALL else 26)  # Elements of the tensor that is filled.
ALLOCATORS = {
    "torch's default allocator": "",
    "expandable segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}


def device():
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def numbered(name, shape, dtype, version):
    """A version's elements: unlike any near them, and exact in BF16."""
    import torch

    count = torch.Size(shape).numel()
    numbers = (torch.arange(count, device=device()) * 7 + version * 31 + len(name)) % 251
    return numbers.reshape(shape).to(getattr(torch, dtype))


def filled(version):
    import torch

    return torch.full((FILLED,), version % 251, dtype=torch.bfloat16, device=device())


def module():
    import torch

    torch.manual_seed(0)
    width = 64 if checks.SMALL else 2048
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4))).to(device())


# --- the worker's process ---


def add_targets(worker, what):
    """Adds the worker's tensors. Returns a function that gives what is wrong with a version."""
    import torch
    import waybill

    targets = {}
    if what == "model":
        for name, (shape, held, wanted, turned) in MODEL.items():
            mine = shape[::-1] if turned else shape
            targets[name] = torch.zeros(mine, dtype=getattr(torch, wanted), device=device())
            strides = (1, shape[0]) if turned else None
            part = waybill.Part(
                name, shape, at=(0,) * len(shape), strides=strides, dtype=getattr(torch, held)
            )
            worker.add(f"my {name}", targets[name], parts=[part])
    elif what == "filled":
        targets["w"] = torch.zeros(FILLED, dtype=torch.bfloat16, device=device())
        worker.add("w", targets["w"])
    else:
        for name, tensor in module().state_dict().items():
            targets[name] = torch.zeros_like(tensor)
            worker.add(name, targets[name])

    def wrong(version):
        for name, target in targets.items():
            if what == "model":
                shape, _, wanted, turned = MODEL[name]
                expected = numbered(name, shape, wanted, version)
                expected = expected.T if turned else expected
            elif what == "filled":
                expected = filled(version)
            else:
                expected = numbered(name, target.shape, "float32", version)
            count = int((target != expected).sum())
            if count:
                yield f"{count} of {target.numel()} elements of {name}"

    return wrong


def be_worker(address, mode, what):
    import waybill

    with waybill.Worker(address, rank=0, world=1, mode=mode, ask=()) as worker:
        wrong = add_targets(worker, what)
        print("ready", flush=True)
        worker.join(20)
        print("joined", flush=True)
        for line in sys.stdin:
            version = int(line)
            worker.await_version(version, 30)
            found = "; ".join(wrong(version))
            print(f"wrong version {version}: {found}" if found else "right", flush=True)


# --- the trainer's process ---


class Job:
    """A controller and a trainer in this process, and a worker in another."""

    def __init__(self, what, mode="in-place", allocator=""):
        import ranks
        import waybill

        self.controller = waybill.Controller(listen="127.0.0.1:0")
        self.trainer = waybill.Trainer(self.controller.address, rank=0, world=1)
        words = ["worker", self.controller.address, mode, what]
        self.worker = ranks.Rank(f"the worker, {mode}", [sys.executable, __file__, *words])
        self.version = 0
        self.what, self.tensors = what, {}
        if what == "model":
            for name, (shape, held, _, _) in MODEL.items():
                self.tensors[name] = numbered(name, shape, held, 0)
        elif what == "filled":
            self.tensors["w"] = filled(0)
        for name, tensor in self.tensors.items():
            self.trainer.add(name, tensor)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.worker.kill()
        self.trainer.close()
        self.controller.close()

    def join(self):
        self.worker.expect("ready", seconds=40)
        self.trainer.join(20)
        self.worker.expect("joined")

    def write(self):
        """Writes the next version, on the current stream."""
        self.version += 1
        for name, tensor in self.tensors.items():
            if self.what == "model":
                shape, held, _, _ = MODEL[name]
                tensor.copy_(numbered(name, shape, held, self.version))
            else:
                tensor.fill_(self.version % 251)

    def check(self):
        """The worker shows the version, to the last element."""
        self.worker.tell(self.version)
        self.worker.expect("right")

    def update(self, **options):
        self.write()
        self.trainer.publish(self.version, deadline=30, **options)
        self.check()


def check(name, call, *arguments):
    if checks.seconds_left() < 8:
        checks.skipped(name, "no time was left")
        return
    begin = time.monotonic()
    try:
        said = call(*arguments)
    except Exception as error:
        where = traceback.format_exc(limit=-3)
        checks.failed(name, f"{type(error).__name__}: {error}\n{where}")
        return
    checks.passed(name, f"{said + ', ' if said else ''}{time.monotonic() - begin:.1f} s")


def values(mode):
    with Job("model", mode) as job:
        job.join()
        for _ in range(3):
            job.update()
        return job.trainer.describe()["lanes"][0]["path"]


def ways_to_wait():
    """Versions whose elements are written late, on streams and before events, while other events are made."""
    import torch

    cycles = 200_000_000  # A tenth of a second.
    with Job("filled") as job:
        job.join()
        side, kept = torch.cuda.Stream(), []
        for number in range(20):
            stream = side if number % 3 == 1 else torch.cuda.current_stream()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(cycles)
                job.write()
            options = {}
            if number % 3 == 1:
                options["stream"] = side
            elif number % 3 == 2:
                options["stream"] = torch.cuda.Event()
                options["stream"].record(stream)
            publish = job.trainer.publish_async(job.version, deadline=30, **options)
            # Each takes the handle of an event that is gone, and is done at once.
            kept = [torch.cuda.Event() for _ in range(number)]
            for event in kept:
                event.record(torch.cuda.Stream())
            publish.committed.wait(30)
            job.check()
    return "20 versions"


def graphs():
    """CUDA graphs are captured, in torch's global mode, while versions go; both are right."""
    import torch

    with Job("filled") as job:
        job.join()
        a = torch.randn(512, 512, device="cuda")
        expected = a * 2 + 1
        torch.cuda.synchronize()
        captured = 0
        for _ in range(5):
            job.write()
            publish = job.trainer.publish_async(job.version, deadline=30)
            while captured == 0 or not publish.committed.done:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    found = a * 2 + 1
                graph.replay()
                torch.cuda.synchronize()
                if not torch.equal(found, expected):
                    raise AssertionError("a graph that was captured meanwhile is wrong")
                captured += 1
            publish.committed.wait(30)
            job.check()
    return f"{captured} graphs"


def captured_join():
    """Graphs are captured in the process of a trainer that joins."""
    import torch

    a = torch.randn(512, 512, device="cuda")
    torch.cuda.synchronize()
    with Job("filled") as job:
        errors = []
        thread = threading.Thread(target=lambda: _keep_error(job.join, errors))
        thread.start()
        captured = 0
        while thread.is_alive():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                a.mul_(2)
            captured += 1
        if errors:
            raise errors[0]
        job.update()
    return f"{captured} graphs"


def _keep_error(call, errors):
    try:
        call()
    except Exception as error:
        errors.append(error)


def fsdp2():
    import torch
    from torch.distributed.fsdp import fully_shard

    backend = "nccl" if device().type == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            backend, init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        try:
            model = module()
            mesh = torch.distributed.device_mesh.init_device_mesh(device().type, (1,))
            for layer in model:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            with Job("module") as job:
                job.trainer.add_module(model)
                job.join()
                for _ in range(2):
                    job.version += 1
                    with torch.no_grad():
                        for name, tensor in model.state_dict().items():
                            local = numbered(name, tensor.shape, "float32", job.version)
                            tensor.to_local().copy_(local)
                    job.trainer.publish(job.version, deadline=30)
                    job.check()
        finally:
            torch.distributed.destroy_process_group()


def training():
    """What publishing costs training steps, and training a publish."""
    import torch

    width, batch, layers = (64, 8, 2) if checks.SMALL else (4096, 4096, 8)
    kind = torch.float32 if device().type == "cpu" else torch.bfloat16
    model = torch.nn.Sequential(
        *(torch.nn.Linear(width, width, dtype=kind) for _ in range(layers))
    ).to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(batch, width, dtype=kind, device=device())

    def step():
        begin = time.monotonic()
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        if device().type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic() - begin

    with Job("model") as job:
        job.join()
        job.update()
        for _ in range(5):
            step()
        alone = [step() for _ in range(20)]
        begin = time.monotonic()
        job.update()
        publish_alone = time.monotonic() - begin
        beside, took = [], []
        for _ in range(5):
            job.write()
            begin = time.monotonic()
            publish = job.trainer.publish_async(job.version, deadline=30)
            while not publish.committed.done:
                beside.append(step())
            publish.committed.wait(30)
            took.append(time.monotonic() - begin)
            job.check()
    slower = statistics.median(beside) / statistics.median(alone)
    size = sum(tensor.nbytes for tensor in job.tensors.values())
    checks.fact(
        "training steps while a version goes",
        f"{statistics.median(beside) * 1e3:.1f} ms ({len(beside)}) instead of {statistics.median(alone) * 1e3:.1f} ms, "
        f"{slower:.2f} times; a publish of {size / 1e6:.0f} MB {statistics.median(took) * 1e3:.1f} ms instead of "
        f"{publish_alone * 1e3:.1f} ms with the comparison",
    )
    return f"{slower:.2f} times"


def memory_of_torch():
    """What the driver says of torch's memory."""
    import check_survey
    import torch
    from driver import Driver

    driver = Driver()
    for name, count in (("100 bytes", 100), ("64 MiB", 64 << 20)):
        tensor = torch.zeros(count, dtype=torch.uint8, device="cuda")
        check_survey.say = checks.fact
        allocator = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "default"
        check_survey.describe(driver, f"torch, {allocator}, {name}", tensor.data_ptr())


def be_section(allocator):
    on_gpu = device().type == "cuda"
    if on_gpu:
        check(f"{allocator}: its memory", memory_of_torch)
    check(f"{allocator}: values, in-place", values, "in-place")
    if allocator != next(iter(ALLOCATORS)):
        return
    check(f"{allocator}: values, shadow-copy", values, "shadow-copy")
    for name, call, needs_gpu in (
        ("publish after sleeping streams", ways_to_wait, True),
        ("FSDP2 of one rank", fsdp2, False),
        ("publish while training steps run", training, False),
        # A capture that fails may leave a process in which nothing works any more.
        ("CUDA graphs beside a publish", graphs, True),
        ("CUDA graphs beside a join", captured_join, True),
    ):
        if needs_gpu and not on_gpu:
            checks.skipped(name, "torch sees no GPU")
        else:
            check(name, call)


def main():
    try:
        importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        checks.skipped("torch", "this Python has no torch")
        return
    seconds = checks.seconds_left(40)
    command = "import torch; print(torch.cuda.is_available())"
    status, said = checks.run([sys.executable, "-c", command], seconds)
    if status != 0:
        checks.failed("import torch", f"{checks.ended(status, seconds)}\n{said}")
        return
    on_gpu = "True" in said.split()
    if not on_gpu and not checks.SMALL:
        checks.skipped("torch", "torch sees no GPU")
        return
    for allocator, options in ALLOCATORS.items():
        if options and not on_gpu:
            continue  # Allocators are for GPUs.
        for variable in (
            "PYTORCH_ALLOC_CONF",
            "PYTORCH_CUDA_ALLOC_CONF",
        ):  # Since torch 2.9; before.
            os.environ[variable] = options
        # The first one has most checks, and leaves some time for the others.
        seconds = checks.seconds_left(20) if options else max(1, checks.seconds_left() - 15)
        process = checks.start(
            [sys.executable, __file__, "section", allocator],
            env={**os.environ, "BUNDLE_SECONDS": str(seconds)},
        )
        try:
            if process.wait(seconds) != 0:
                checks.failed(f"{allocator}, as a whole", checks.ended(process.returncode, seconds))
        except checks.subprocess.TimeoutExpired:
            process.kill()
            checks.failed(f"{allocator}, as a whole", f"it did not end within {seconds:.0f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        be_worker(*sys.argv[2:])
    elif sys.argv[1:2] == ["section"]:
        be_section(sys.argv[2])
    else:
        main()
