// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/host_threads.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace waybill::kernels::cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr size_t kStackBytes = 64 * 1024;

// Opens when all parties are there.
struct Barrier {
  unsigned arrived = 0;
  uint64_t opened = 0;
};

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStackBytes);
  bool is_done = false;
};

// One block at a time, one thread at a time: a thread runs until it waits.
struct Machine {
  std::vector<Fiber> fibers;
  ucontext_t scheduler{};
  HostThread running{};
  Barrier block;
  std::vector<Barrier> warps;
  std::vector<uint64_t> given;  // A value a thread.
  const std::function<void()>* thread = nullptr;
  uint64_t progress = 0;
};

Machine& TheMachine() {
  static Machine& machine = *new Machine;
  return machine;
}

void Wait(Barrier& barrier, unsigned parties) {
  Machine& machine = TheMachine();
  const uint64_t opened = barrier.opened;
  ++machine.progress;
  if (++barrier.arrived == parties) {
    barrier.arrived = 0;
    ++barrier.opened;
    return;
  }
  while (barrier.opened == opened) {
    swapcontext(&machine.fibers[machine.running.index].context, &machine.scheduler);
  }
}

void RunFiber() {
  Machine& machine = TheMachine();
  (*machine.thread)();
  machine.fibers[machine.running.index].is_done = true;
  ++machine.progress;
}

void StartBlock(unsigned threads) {
  Machine& machine = TheMachine();
  machine.block = Barrier();
  machine.warps.assign((threads + kWarp - 1) / kWarp, Barrier());
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = machine.fibers[i];
    fiber.is_done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = &machine.scheduler;
    makecontext(&fiber.context, RunFiber, 0);
  }
}

}  // namespace

void RunBlocks(uint64_t blocks, unsigned threads, const std::function<void()>& thread) {
  Machine& machine = TheMachine();
  if (machine.fibers.size() < threads) machine.fibers.resize(threads);
  machine.given.resize(threads);
  machine.thread = &thread;
  for (uint64_t block = 0; block < blocks; ++block) {
    StartBlock(threads);
    for (bool all_done = false; !all_done;) {
      const uint64_t before = machine.progress;
      all_done = true;
      for (unsigned i = 0; i < threads; ++i) {
        if (machine.fibers[i].is_done) continue;
        machine.running = {static_cast<unsigned>(block), threads, i};
        swapcontext(&machine.scheduler, &machine.fibers[i].context);
        all_done = all_done && machine.fibers[i].is_done;
      }
      if (!all_done && machine.progress == before) {
        std::fprintf(stderr, "block %u: threads wait for others that will not come\n",
                     machine.running.block);
        std::abort();
      }
    }
  }
}

const HostThread& ThisThread() { return TheMachine().running; }

void WaitForBlock() { Wait(TheMachine().block, TheMachine().running.threads); }

uint64_t ExchangeInWarp(uint64_t value, unsigned from) {
  Machine& machine = TheMachine();
  const unsigned warp = machine.running.index / kWarp;
  machine.given[machine.running.index] = value;
  Wait(machine.warps[warp], kWarp);
  const uint64_t got = machine.given[warp * kWarp + from % kWarp];
  Wait(machine.warps[warp], kWarp);
  return got;
}

}  // namespace waybill::kernels::cuda
