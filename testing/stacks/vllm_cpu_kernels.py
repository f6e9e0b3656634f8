# SPDX-License-Identifier: Apache-2.0
"""Implements in torch the CPU kernels that vLLM's published wheel lacks, so that the engine runs without a GPU.

The kernels are slow, and only those that the models of the tests use are here. `run` installs this module as a plug-in of
vLLM, which loads it in each of its processes.
"""

import os
import threading

import torch
import vllm_cpu_sleep
from vllm.distributed.device_communicators import shm_broadcast


def _nothing(*_args):
    pass


def _slot_mapping(starts, positions, table, slots, size):
    for request in range(len(starts) - 1):
        tokens = slice(int(starts[request]), int(starts[request + 1]))
        at = positions[tokens]
        slots[tokens] = table[request][at // size].to(slots.dtype) * size + at % size


def _cache(key, value, key_cache, value_cache, slots, *_):
    size = key_cache.shape[2]
    kept = slots >= 0
    slots = slots[kept].long()
    at = slots // size, slice(None), slots % size
    key_cache[at] = key[: len(kept)][kept]
    value_cache[at] = value[: len(kept)][kept]


def _attend(
    query, keys, values, output, starts, lengths, scale, causal, _alibi, _window, table, *_
):
    size, heads = keys.shape[2], query.shape[1] // keys.shape[1]
    for request, length in enumerate(lengths.tolist()):
        first, last = int(starts[request]), int(starts[request + 1])
        if last <= first:
            continue
        blocks = table[request][: -(-length // size)].long()
        k, v = (
            cache[blocks].permute(1, 0, 2, 3).flatten(1, 2)[:, :length].float()
            for cache in (keys, values)
        )
        q = query[first:last].float().transpose(0, 1)
        scores = q @ k.repeat_interleave(heads, 0).transpose(1, 2) * scale
        if causal:
            rows = torch.arange(length - (last - first), length)[:, None]
            scores.masked_fill_(torch.arange(length)[None, :] > rows, float("-inf"))
        sums = scores.softmax(-1) @ v.repeat_interleave(heads, 0)
        output[first:last] = sums.transpose(0, 1).reshape(output[first:last].shape)


def _draw(logits, seeds):
    """Draws a token for each row, by Gumbel's noise."""
    noise = torch.empty_like(logits)
    for row, seed in zip(noise, seeds.tolist(), strict=True):
        row.exponential_(generator=torch.Generator().manual_seed(seed))
    return (logits - noise.log()).argmax(-1)


def _pack_experts(weight, packed, _isa):
    """Stores the experts in another order, as real kernels do. An update that does not pack again generates nonsense."""
    packed.copy_(weight.flip(-1))


def _experts(out, tokens, w13, w2, _b13, _b2, weights, chosen, _skip, act, _isa):
    assert act == "silu", act
    w13, w2 = w13.flip(-1).float(), w2.flip(-1).float()
    sums = torch.zeros(tokens.shape)
    for t, token in enumerate(tokens.float()):
        for weight, expert in zip(weights[t].tolist(), chosen[t].tolist(), strict=True):
            gate, up = (w13[expert] @ token).chunk(2)
            sums[t] += weight * (w2[expert] @ (torch.nn.functional.silu(gate) * up))
    out.copy_(sums)


def _sample_drafts(drafted, valid, starts, sampled, rejected, count):
    """Says at which token each request goes on, and how many drafted tokens it has lost."""
    drafts = torch.diff(drafted, prepend=drafted.new_zeros(1))
    rejected[:count] = torch.where(drafts > 0, drafts + 1 - valid, 0)
    sampled[:count] = starts[1 : count + 1] - 1 - rejected[:count]


def _next_tokens(sampled, discarded, backup, following, counts, vocabulary, width, count):
    """Says which token follows in each request, and how many of those that were sampled count."""
    for request in range(count):
        tokens = [t for t in sampled[request, :width].tolist() if 0 <= t < vocabulary]
        tokens = [] if discarded[request] else tokens
        following[request] = tokens[-1] if tokens else backup[request]
        counts[request] = len(tokens)


def _accept_greedily(accepted, drafted, drafts, wanted, bonus, greedy, _longest):
    """Accepts drafted tokens up to the first one that the target would not have generated."""
    begin = 0
    for request, end in enumerate(drafted.tolist()):
        if greedy is None or greedy[request]:
            its, right = drafts[begin:end].tolist(), wanted[begin:end].tolist()
            same = next((i for i, token in enumerate(its) if token != right[i]), len(its))
            tokens = [*right, int(bonus[request])][: same + 1]
            accepted[request, : len(tokens)] = torch.tensor(tokens)
        begin = end


def _receive_between_stages():
    """Lets a stage of a pipeline receive from the one before: vLLM makes the memory in its warm-up, which it skips here."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    gather = CPUModelRunner.sync_and_gather_intermediate_tensors

    def make_and_gather(runner, *args, **kwargs):
        if runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens,
                dtype=runner.model_config.dtype,
                device=runner.device,
            )
        return gather(runner, *args, **kwargs)

    CPUModelRunner.sync_and_gather_intermediate_tensors = make_and_gather


def _compute_own_experts():
    """Lets experts be dealt to ranks: vLLM does not tell its kernel for CPUs which ones are here."""
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    apply = CPUUnquantizedExperts.apply

    def apply_own(experts, *, topk_weights, topk_ids, expert_map, **kwargs):
        if expert_map is not None:
            own = expert_map[topk_ids.long()]
            topk_weights = topk_weights.masked_fill(own < 0, 0)
            topk_ids = own.clamp(min=0)
        return apply(
            experts, topk_weights=topk_weights, topk_ids=topk_ids, expert_map=None, **kwargs
        )

    CPUUnquantizedExperts.apply = apply_own


def _exchange_tokens():
    """Lets replicas exchange the tokens of their experts, by the two operations that vLLM's group for CPUs lacks."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    def all_gatherv(group, given, dim=0, sizes=None):
        if isinstance(given, torch.Tensor):
            return all_gatherv(group, [given], dim, sizes)[0]
        assert dim == 0 and sizes is not None
        gathered = []
        for tensor in given:
            room = tensor.new_zeros(max(sizes), *tensor.shape[1:])
            room[: len(tensor)] = tensor
            pieces = [torch.empty_like(room) for _ in sizes]
            torch.distributed.all_gather(pieces, room, group=group.device_group)
            kept = zip(pieces, sizes, strict=True)
            gathered.append(torch.cat([piece[:size] for piece, size in kept]))
        return gathered

    def reduce_scatterv(group, given, dim=-1, sizes=None):
        assert dim == 0 and sizes is not None
        sums = given.clone()
        torch.distributed.all_reduce(sums, group=group.device_group)
        return sums.split(sizes)[group.rank_in_group].contiguous()

    CpuCommunicator.all_gatherv = all_gatherv
    CpuCommunicator.reduce_scatterv = reduce_scatterv


def _numbers_of_parameters(worker):
    """Returns the values that elements of the parameters of a worker's models have, but for 0, which padding has."""
    models = [worker.get_model(), worker.get_draft_model()]
    parameters = [its for model in models if model is not None for its in model.parameters()]
    return sorted({value for its in parameters for value in its.unique().tolist()} - {0.0})


def _answer_tests():
    """Lets tests ask a server's workers what they hold: vLLM's own checksums leave draft models out."""
    from vllm.v1.worker.worker_base import WorkerBase

    WorkerBase.numbers_of_parameters = _numbers_of_parameters


def install():
    """Registers the kernels. vLLM calls it in each of its processes."""
    _answer_tests()
    _receive_between_stages()
    _compute_own_experts()
    _exchange_tokens()
    vllm_cpu_sleep.install()
    if os.environ.get("VLLM_CPU_WAITS_ASLEEP"):
        never = threading.Event()
        shm_broadcast.sched_yield = lambda: never.wait(0.0002)
    # With AMX, vLLM would choose kernels that only its own CPU build has.
    torch.cpu._is_amx_tile_supported = lambda: False
    for name, kernel in {
        "compute_slot_mapping_kernel_impl": _slot_mapping,
        "cpu_attention_with_kv_cache": _attend,
        "cpu_attn_has_isa": lambda _: False,
        "cpu_attn_reshape_and_cache": _cache,
        "cpu_fused_moe": _experts,
        "eagle_prepare_inputs_padded_kernel_impl": _sample_drafts,
        "eagle_prepare_next_token_padded_kernel_impl": _next_tokens,
        "fused_gumbel_argmax": _draw,
        "get_scheduler_metadata": lambda *_: torch.empty(0),
        "greedy_argmax": lambda logits: logits.argmax(-1),
        "init_cpu_memory_env": _nothing,
        "prepack_moe_weight": _pack_experts,
        "rejection_greedy_sample_kernel_impl": _accept_greedily,
    }.items():
        setattr(torch.ops._C, name, kernel)
