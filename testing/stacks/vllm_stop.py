# SPDX-License-Identifier: Apache-2.0
"""Measures how long a vLLM server stands still for an update, and what it generates while the update arrives.

    python vllm_stop.py [--rate MBIT] [--pause MODE] [--timeline FILE]

A server with a model of 411 MB generates for one client, which notes when each token comes. A trainer in a network namespace of
its own, behind a link of MBIT (1000), sends new weights to it: once so that the server computes running requests again with the new
weights, and then several times so that they go on with what the old ones have computed. Prints for both, as medians,

- how many tokens came while it arrived, beside as many seconds without an update,
- the longest time between two tokens around the switch, beside copying the parameters once.

Then engines that loaded the old and the new weights generate the same, and each token around the first update has to be what
either of them makes of the tokens before it. It needs to be root, for the namespace.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import requests
import vllm_updates
from checkpoints import as_module, weights
from timeline import draw

MODEL = "stop-qwen3"
# Addresses of 198.18.0.0/15, which is reserved for tests of networks.
ENGINE, TRAINER = "198.18.77.1", "198.18.77.2"
PROMPT = list(range(3, 43))
SECONDS = 5.0  # The time before each update for which the server generates without one.
UPDATES = 5
LENGTH = 600  # The number of tokens that each request asks for.


class Link:
    """A network namespace, which a link of a given rate connects with this one."""

    def __init__(self, rate):
        self.name, self.ends = f"waybill{os.getpid()}", (f"wba{os.getpid()}", f"wbb{os.getpid()}")
        self.rate = rate

    def __enter__(self):
        near, far = self.ends
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", self.name)
        for inside, end, address in (((), near, ENGINE), (self.inside(), far, TRAINER)):
            run(*inside, "ip", "address", "add", f"{address}/30", "dev", end)
            run(*inside, "ip", "link", "set", end, "up")
            shape = ("rate", f"{self.rate}mbit", "burst", "256kb", "latency", "50ms")
            run(*inside, "tc", "qdisc", "add", "dev", end, "root", "tbf", *shape)
        run(*self.inside(), "ip", "link", "set", "lo", "up")
        return self

    def received_bytes(self):
        """Returns how much has come over the link."""
        return int(Path(f"/sys/class/net/{self.ends[0]}/statistics/rx_bytes").read_text())

    def inside(self):
        return ("ip", "netns", "exec", self.name)

    def __exit__(self, *_):
        subprocess.run(["ip", "netns", "del", self.name], check=False)


def run(*command):
    subprocess.run(command, check=True)


class Arrivals(threading.Thread):
    """Notes how much has come over a link, as (time, bytes)."""

    def __init__(self, link):
        super().__init__(daemon=True)
        self.link, self.seen, self.stops = link, [], threading.Event()

    def run(self):
        while not self.stops.wait(0.02):
            self.seen.append((time.monotonic(), self.link.received_bytes()))


class Client(threading.Thread):
    """Generates without an end, and notes (time, request, token)."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.tokens, self.request = server, [], 0
        self.stops = self.begins_anew = False
        self.error = None
        self.more = threading.Condition()

    def run(self):
        try:
            while not self.stops:
                self.generate()
                self.request += 1
        except Exception as error:
            with self.more:
                self.error = error
                self.more.notify()

    def generate(self):
        body = {
            "model": self.server.model,
            "prompt": PROMPT,
            "max_tokens": LENGTH,
            "temperature": 0,
        }
        body |= {"return_token_ids": True, "detokenize": False, "ignore_eos": True, "stream": True}
        url = f"{self.server.address}/v1/completions"
        with requests.post(url, json=body, stream=True, timeout=60) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if self.stops or self.begins_anew:
                    self.begins_anew = False
                    return
                if line.startswith(b"data: {"):
                    with self.more:
                        for token in json.loads(line[6:])["choices"][0]["token_ids"]:
                            self.tokens.append((time.monotonic(), self.request, token))
                        self.more.notify()

    def between(self, begin, end):
        return [at for at, *_ in self.tokens if begin <= at < end]

    def await_tokens(self, count):
        self.await_that(lambda: len(self.tokens) >= count)

    def await_seconds(self, seconds):
        """Returns when that began and ended: with a token."""
        begin = time.monotonic()
        self.await_that(lambda: self.tokens[-1][0] >= begin + seconds)
        return begin, time.monotonic()

    def await_that(self, condition):
        with self.more:
            if not self.more.wait_for(lambda: self.error is not None or condition(), 120):
                raise TimeoutError("the server generates nothing")
        if self.error is not None:
            raise self.error


def be_trainer(controller, address, pause):
    """Sends a version for each line, and says when that began and ended, and for how long the engine stood still."""
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.base import ModuleSource
    from waybill.integrations.vllm import HTTPClient, WaybillInit

    module = as_module(weights(MODEL, 1))
    client = HTTPClient(address, pause=pause)
    sender = WeightTransferTrainerFactory.trainer_init(
        WaybillInit(controller, fabric="tcp", rank=0, world=1, deadline=120),
        client=client,
        source=ModuleSource(module),
    )
    print("ready", flush=True)
    for line in sys.stdin:
        version, clears = json.loads(line)
        for name, tensor in weights(MODEL, version).items():
            module.get_parameter(name).copy_(tensor)
        print("ready", flush=True)
        client._clear_cache = clears
        sys.stdin.readline()
        begin = time.monotonic()
        sender.send_weights()
        print(json.dumps([begin, time.monotonic(), sender.last_switch.stopped[0]]), flush=True)
    sender.shutdown()


class Trainer:
    """A trainer in another process, behind the link."""

    def __init__(self, link, *arguments):
        command = [sys.executable, __file__, "--trainer", *arguments]
        self.process = subprocess.Popen(
            [*link.inside(), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.expect("ready")

    def expect(self, word):
        for line in self.process.stdout:
            if line.strip() == word:
                return
        sys.exit("the trainer has ended")

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def prepare(self, version, clears):
        self.tell(json.dumps([version, clears]))
        self.expect("ready")

    def send(self):
        self.tell("")
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait(60)


def copy_seconds():
    """Returns how long it takes to copy the parameters of the model once, in one thread."""
    import torch

    torch.set_num_threads(1)
    held = list(weights(MODEL, 1).values())
    shown = [tensor.clone() for tensor in held]
    took = []
    for _ in range(7):
        begin = time.monotonic()
        for to, source in zip(shown, held, strict=True):
            to.copy_(source)
        took.append(time.monotonic() - begin)
    return median(took)


def bytes_of_model():
    from math import prod

    from checkpoints import checkpoint_of

    return sum(2 * prod(shape) for shape, _ in checkpoint_of(MODEL).values())


def be_fresh(version, folder):
    """Generates from prompts that it reads with an engine that has loaded a version, and prints the tokens."""
    from checkpoints import save
    from vllm import LLM, SamplingParams

    save(MODEL, version, folder)
    llm = LLM(
        str(folder), skip_tokenizer_init=True, enforce_eager=True, max_model_len=1024,
        compilation_config={"custom_ops": ["none"]},
    )  # fmt: skip
    for line in sys.stdin:
        prompt, count = json.loads(line)
        sampling = SamplingParams(
            max_tokens=count, temperature=0, detokenize=False, ignore_eos=True
        )
        done = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        print("tokens " + json.dumps(list(done[0].outputs[0].token_ids)), flush=True)


class Fresh:
    """An engine in another process that has loaded a version from disk."""

    def __init__(self, version, folder):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--fresh", str(version), str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def generate(self, prompt, count):
        self.process.stdin.write(json.dumps([prompt, count]) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("tokens "):
                return json.loads(line[7:])
        raise RuntimeError("an engine has ended")


def check_tokens(tokens, folder):
    """Ends the program unless each token is of the old weights, or from some token of a request on of the new ones."""
    old, new = (Fresh(version, folder / f"fresh{version}") for version in (0, 1))
    generated = {}
    for _, request, token in tokens:
        generated.setdefault(request, []).append(token)
    by_old, by_new = old.generate(PROMPT, LENGTH), new.generate(PROMPT, LENGTH)
    across = 0
    for request, its in generated.items():
        if its in (by_old[: len(its)], by_new[: len(its)]):
            continue
        across += 1
        same = next(i for i, token in enumerate(its) if token != by_old[i])
        # Some of the first tokens of the new weights may be those of the old ones, too.
        splits = range(same, max(-1, same - 8), -1)
        if not any(new.generate(PROMPT + its[:n], len(its) - n) == its[n:] for n in splits):
            sys.exit(
                f"request {request}: tokens from {same} on are of neither weights: {its[same:][:9]}"
            )
    for engine in (old, new):
        engine.process.stdin.close()
        engine.process.wait(60)
    print(
        f"{len(tokens)} tokens of {len(generated)} requests: each is of the old or the new weights; {across} went on across"
    )


class Measured:
    """One update."""

    def __init__(self, client, calm, begin, end, stopped):
        self.seconds = end - stopped - begin  # Until everything had come.
        self.usual_rate = len(client.between(*calm)) / (calm[1] - calm[0])
        self.rate = len(client.between(begin, end - stopped)) / self.seconds
        times = client.between(calm[0], end + 1)
        gaps = [(b - a, b) for a, b in zip(times, times[1:], strict=False)]
        self.usual_gap = median(gap for gap, _ in gaps)
        self.stop = (
            max(gap for gap, at in gaps if end - stopped - 0.1 < at < end + 1) - self.usual_gap
        )


def report(name, updates, copy):
    def of(attribute):
        found = [getattr(update, attribute) for update in updates]
        least, most = (f"{1e3 * value:.0f}" for value in (min(found), max(found)))
        return f"{1e3 * median(found):.0f} [{least}, {most}] ms" if len(found) > 1 else f"{most} ms"

    size, seconds = bytes_of_model() / 1e6, median(update.seconds for update in updates)
    shares = sorted(update.rate / update.usual_rate for update in updates)
    print(f"{name}, {len(updates)} updates:")
    print(f"  {size:.0f} MB arrived in {seconds:.2f} s, {size / seconds:.0f} MB/s")
    print(
        f"  of the tokens that come without an update, {median(shares):.2f} [{shares[0]:.2f}, {shares[-1]:.2f}] came "
        "meanwhile (target 0.9)"
    )
    print(
        f"  stop: {of('stop')} more than usually between two tokens ({of('usual_gap')}); target "
        f"{1e3 * (1.2 * copy + 0.06):.0f} ms, of which copying the parameters once is {1e3 * copy:.0f} ms"
    )


def measure(arguments, folder, link, copy):
    import waybill

    token = os.environ["WAYBILL_TOKEN"] = secrets.token_hex(16)  # For what listens beyond loopback.
    server = vllm_updates.Server(
        MODEL, 0, folder / "model", host=ENGINE, max_model_len=1024,
        weight_transfer_config={"backend": "waybill"},
    )  # fmt: skip
    try:
        with waybill.Controller(listen=f"{ENGINE}:0", token=token) as controller:
            trainer = Trainer(link, controller.address, server.address, arguments.pause)
            client = Client(server)
            client.start()
            client.await_tokens(20)
            arrivals = Arrivals(link)
            arrivals.start()
            updates = []
            for version in range(1, UPDATES + 1):
                trainer.prepare(version, version == 1)
                calm = client.await_seconds(SECONDS)
                updates.append((calm, *trainer.send()))
                client.await_seconds(2)
                client.begins_anew = True
                client.await_seconds(1)
            client.stops = True
            client.join(60)
            arrivals.stops.set()
            trainer.stop()
    finally:
        server.stop()
    measured = [Measured(client, *update) for update in updates]
    if arguments.timeline is not None:
        usual = sorted(updates[1:], key=lambda update: update[-1])[len(updates) // 2 - 1]
        draw(arguments.timeline, client.tokens, arrivals.seen, usual, arguments.rate)
    report("running requests are computed again", measured[:1], copy)
    report("running requests keep what is computed", measured[1:], copy)
    second = updates[1][1]
    check_tokens([token for token in client.tokens if token[0] < second], folder)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=1000, metavar="MBIT")
    parser.add_argument("--pause", default="keep", choices=["keep", "at-once"])
    parser.add_argument("--timeline", type=Path, metavar="FILE")
    parser.add_argument("--trainer", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--fresh", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trainer:
        return be_trainer(*arguments.trainer)
    if arguments.fresh:
        return be_fresh(int(arguments.fresh[0]), Path(arguments.fresh[1]))
    copy = copy_seconds()
    os.environ["OMP_NUM_THREADS"] = "1"
    # Otherwise, vLLM's processes keep two processors busy by waiting for each other.
    os.environ["VLLM_CPU_WAITS_ASLEEP"] = "1"
    with tempfile.TemporaryDirectory() as name, Link(arguments.rate) as link:
        measure(arguments, Path(name), link, copy)


if __name__ == "__main__":
    main()
