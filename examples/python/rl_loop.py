"""A small RL loop: a tiny transformer learns to repeat its prompt, by GRPO, on a CPU in seconds.

python rl_loop.py

One process learns and publishes; another generates with what is shown to it. It never stops for
an update: while a version arrives in the other of two buffers, it generates with the one before.
"""

import argparse
import multiprocessing
import time

import torch
import waybill
from torch import nn
from torch.func import functional_call

SYMBOLS, LENGTH, WIDTH = 8, 4, 32
# In each batch; the samples of one prompt are a group, and compared to each other.
PROMPTS, SAMPLES = 16, 16


class Transformer(nn.Module):
    """Two layers of attention over at most 1 + LENGTH symbols."""

    def __init__(self):
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Embedding(1 + LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, text):
        places = torch.arange(text.shape[1])
        mask = nn.Transformer.generate_square_subsequent_mask(len(places))
        return self.head(self.layers(self.symbols(text) + self.places(places), mask=mask))


def rollouts(controller, steps, batches):
    """Generates a batch for each step, with weights that are at most one step old."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = Transformer()
    with waybill.Worker(controller, rank=0, world=1) as worker:
        names = list(model.state_dict())
        for name, tensor in model.state_dict().items():
            worker.add(name, shape=tensor.shape, dtype=tensor.dtype)
        worker.join()
        for step in range(1, steps + 1):
            worker.await_version(max(1, step - 1))
            with worker.snapshot() as snapshot, torch.no_grad():
                weights = {name: snapshot.torch(name) for name in names}
                text = torch.randint(SYMBOLS, (PROMPTS, 1)).repeat_interleave(SAMPLES, 0)
                for _ in range(LENGTH):
                    logits = functional_call(model, weights, text)[:, -1]
                    text = torch.cat([text, torch.multinomial(logits.softmax(-1), 1)], 1)
                version = snapshot.version
                del weights  # Nothing is held any more: the next version may come.
            rewards = (text[:, 1:] == text[:, :1]).float().mean(1)
            batches.send((version, text.numpy(), rewards.numpy()))
        worker.leave()


def learn(model, optimizer, text, rewards):
    """One step of GRPO: a sample is as good as it is better than its group."""
    groups = rewards.reshape(PROMPTS, SAMPLES)
    advantage = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-3)
    log_odds = model(text[:, :-1]).log_softmax(-1)
    chosen = log_odds.gather(-1, text[:, 1:, None]).squeeze(-1).sum(1)
    loss = -(chosen * advantage.flatten()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=80)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Transformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    spawn = multiprocessing.get_context("spawn")
    batches, rollout_end = spawn.Pipe(duplex=False)
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        generator = spawn.Process(target=rollouts, args=(controller.address, steps, rollout_end))
        generator.start()
        with waybill.Trainer(controller.address, rank=0, world=1) as trainer:
            trainer.add_module(model)
            trainer.join()
            publish = trainer.publish(1)
            print("step  of version  reward  learning ms  publishing ms")
            waited = 0.0
            for step in range(1, steps + 1):
                version, text, rewards = batches.recv()
                begin = time.perf_counter()
                learn(model, optimizer, torch.from_numpy(text), torch.from_numpy(rewards))
                learned = time.perf_counter()
                if step + 1 < steps:
                    publish.committed.wait()
                    publish = trainer.publish(step + 1)
                published = time.perf_counter()
                waited += published - learned
                if step % 10 == 0 or step == 1:
                    print(
                        f"{step:4}  {version:10}  {rewards.mean():6.3f}  "
                        f"{(learned - begin) * 1e3:11.1f}  {(published - learned) * 1e3:13.1f}",
                        flush=True,
                    )
            generator.join()
    print(f"{waited / steps * 1e3:.1f} ms of each step went into updates")


if __name__ == "__main__":
    main()
