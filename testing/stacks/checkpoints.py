# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tiny twins and of real models: names, shapes and dtypes as Hugging Face has them, and random weights."""

import json
from math import ceil
from pathlib import Path

from vision import save_processor

CONFIGS = Path(__file__).parent / "configs"


# Is put before the names of what belongs to the draft model.
DRAFT = "draft."


def config_of(name):
    """Returns the contents of a model's config.json. One that is `like` another model has its own values beside that one's."""
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    like = config.pop("like", None)
    return config if like is None else config_of(like) | config


def checkpoint_of(name):
    """Returns (shape, dtype) of each tensor of a model's checkpoint, and of its draft model's, by name."""
    config = config_of(name)
    if "vision_config" in config:
        return _by_transformers(config)
    method = config.get("quantization_config", {}).get("quant_method")
    fp8 = method == "fp8"
    tensors = {}
    for tensor, shape in _names(config):
        if method == "mxfp4" and tensor.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, columns, rows = shape  # Transposed, in groups of 32 elements with one scale.
            tensors[f"{tensor}_blocks"] = (experts, rows, columns // 32, 16), "uint8"
            tensors[f"{tensor}_scales"] = (experts, rows, columns // 32), "uint8"
            continue
        matrix = len(shape) == 2 and ".layers." in tensor
        quantised = fp8 and matrix and not tensor.endswith("mlp.gate.weight")
        bias = tensor.endswith("correction_bias")
        tensors[tensor] = shape, "float8_e4m3fn" if quantised else "float32" if bias else "bfloat16"
        if quantised:
            blocks = tuple(ceil(n / 128) for n in shape)
            tensors[f"{tensor}_scale_inv"] = blocks, "float32"
    return tensors


def _by_transformers(config):
    """Returns the same for a model with vision, whose names transformers knows best."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText
    from transformers.core_model_loading import revert_weight_conversion

    config = AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    tensors = revert_weight_conversion(model, model.state_dict())
    if config.tie_word_embeddings:
        tensors = {n: its for n, its in tensors.items() if not n.endswith("lm_head.weight")}
    return {name: (tuple(its.shape), "bfloat16") for name, its in tensors.items()}


def _names(config):
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    feed_forward = _FEED_FORWARD.get(config["model_type"], _feed_forward)
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    layers = config["num_hidden_layers"]
    predicted = config.get("num_nextn_predict_layers", 0)
    for layer in range(layers + predicted):
        prefix = f"model.layers.{layer}."
        if layer >= layers:
            yield from _next_token(config, prefix)
        if (layer + 1) % config.get("full_attention_interval", 1):
            yield from _linear_attention(config, prefix + "linear_attn.")
        else:
            yield from _attention(config, prefix + "self_attn.")
        yield from feed_forward(config, layer, prefix)
        yield prefix + "input_layernorm.weight", (hidden,)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, hidden)
    if "draft" in config:
        yield from _eagle(config | config["draft"])


def _next_token(config, prefix):
    """What a layer for multi-token prediction (MTP) has more than others."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        yield f"{prefix}{norm}.weight", (hidden,)
    yield prefix + "eh_proj.weight", (hidden, 2 * hidden)
    yield prefix + "embed_tokens.weight", (vocabulary, hidden)
    yield prefix + "shared_head.head.weight", (vocabulary, hidden)


def _eagle(config):
    """A draft model of the kind EAGLE, which has neither embeddings nor a head of its own."""
    hidden = config["hidden_size"]
    yield DRAFT + "fc.weight", (hidden, 2 * hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"{DRAFT}layers.{layer}."
        yield from _attention(config, prefix + "self_attn.")
        yield from _dense(config, prefix + "mlp.", config["intermediate_size"])
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        if layer:
            yield prefix + "input_layernorm.weight", (hidden,)


def _attention(config, prefix):
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if config["model_type"] == "deepseek_v3":
        nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        value, q, kv = config["v_head_dim"], config["q_lora_rank"], config["kv_lora_rank"]
        yield prefix + "q_a_proj.weight", (q, hidden)
        yield prefix + "q_a_layernorm.weight", (q,)
        yield prefix + "q_b_proj.weight", (heads * (nope + rope), q)
        yield prefix + "kv_a_proj_with_mqa.weight", (kv + rope, hidden)
        yield prefix + "kv_a_layernorm.weight", (kv,)
        yield prefix + "kv_b_proj.weight", (heads * (nope + value), kv)
        yield prefix + "o_proj.weight", (hidden, heads * value)
        return
    size, kv_heads = config["head_dim"], config["num_key_value_heads"]
    kind = config["model_type"]
    gates = 2 if kind == "qwen3_next" else 1
    rows = {"q": gates * heads * size, "k": kv_heads * size, "v": kv_heads * size}
    for name, count in rows.items():
        yield f"{prefix}{name}_proj.weight", (count, hidden)
        if config.get("attention_bias"):
            yield f"{prefix}{name}_proj.bias", (count,)
    yield prefix + "o_proj.weight", (hidden, heads * size)
    if kind == "gpt_oss":
        yield prefix + "o_proj.bias", (hidden,)
        yield prefix + "sinks", (heads,)
    if kind.startswith("qwen3") or kind == "glm4_moe":
        yield prefix + "q_norm.weight", (size,)
        yield prefix + "k_norm.weight", (size,)


def _linear_attention(config, prefix):
    """The gated delta net of Qwen3-Next."""
    hidden = config["hidden_size"]
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    of_keys, of_values = (
        keys * config["linear_key_head_dim"],
        values * config["linear_value_head_dim"],
    )
    yield prefix + "in_proj_qkvz.weight", (2 * of_keys + 2 * of_values, hidden)
    yield prefix + "in_proj_ba.weight", (2 * values, hidden)
    yield prefix + "conv1d.weight", (2 * of_keys + of_values, 1, config["linear_conv_kernel_dim"])
    yield prefix + "dt_bias", (values,)
    yield prefix + "A_log", (values,)
    yield prefix + "norm.weight", (config["linear_value_head_dim"],)
    yield prefix + "out_proj.weight", (hidden, of_values)


def _dense(config, where, width):
    hidden = config["hidden_size"]
    yield where + "gate_proj.weight", (width, hidden)
    yield where + "up_proj.weight", (width, hidden)
    yield where + "down_proj.weight", (hidden, width)


def _gpt_oss(config, layer, prefix):
    hidden, width, experts = (
        config[size] for size in ("hidden_size", "intermediate_size", "num_local_experts")
    )
    yield prefix + "mlp.router.weight", (experts, hidden)
    yield prefix + "mlp.router.bias", (experts,)
    yield prefix + "mlp.experts.gate_up_proj", (experts, hidden, 2 * width)
    yield prefix + "mlp.experts.gate_up_proj_bias", (experts, 2 * width)
    yield prefix + "mlp.experts.down_proj", (experts, width, hidden)
    yield prefix + "mlp.experts.down_proj_bias", (experts, hidden)


def _llama_4(config, layer, prefix):
    prefix += "feed_forward."
    if (layer + 1) % config["interleave_moe_layer_step"]:
        yield from _dense(config, prefix, config["intermediate_size_mlp"])
        return
    hidden, width, experts = (
        config[size] for size in ("hidden_size", "intermediate_size", "num_local_experts")
    )
    yield prefix + "router.weight", (experts, hidden)
    yield prefix + "experts.gate_up_proj", (experts, hidden, 2 * width)
    yield prefix + "experts.down_proj", (experts, width, hidden)
    yield from _dense(config, prefix + "shared_expert.", width)


def _feed_forward(config, layer, prefix):
    hidden, prefix = config["hidden_size"], prefix + "mlp."

    experts = config.get("num_experts") or config.get("n_routed_experts")
    if not experts or layer < config.get("first_k_dense_replace", 0):
        yield from _dense(config, prefix, config["intermediate_size"])
        return
    width = config["moe_intermediate_size"]
    yield prefix + "gate.weight", (experts, hidden)
    if "n_routed_experts" in config:
        yield prefix + "gate.e_score_correction_bias", (experts,)
    for expert in range(experts):
        yield from _dense(config, f"{prefix}experts.{expert}.", width)
    if config.get("n_shared_experts"):
        yield from _dense(config, prefix + "shared_experts.", width * config["n_shared_experts"])
    if "shared_expert_intermediate_size" in config:
        width = config["shared_expert_intermediate_size"]
        yield from _dense(config, prefix + "shared_expert.", width)
        yield prefix + "shared_expert_gate.weight", (1, hidden)


_FEED_FORWARD = {"gpt_oss": _gpt_oss, "llama4_text": _llama_4}


def weights(model, version):
    """Returns the tensors of a checkpoint by name. `version` is the seed of their values."""
    import torch

    generator = torch.Generator().manual_seed(version)
    tensors = {}
    for name, (shape, dtype) in checkpoint_of(model).items():
        values = torch.randn(shape, generator=generator) * (0.3 if len(shape) > 1 else 0.1)
        tensors[name] = (values + ("norm" in name)).to(getattr(torch, dtype))
    return tensors


def before_quantisation(checkpoint):
    """Returns BF16 weights from which an FP8 checkpoint is made, and the names of those that are quantised.

    checkpoint  As of checkpoint_of().
    """
    import torch

    generator = torch.Generator().manual_seed(1)
    made = {
        tensor: torch.randn(shape, generator=generator).to(
            torch.bfloat16 if dtype == "float8_e4m3fn" else getattr(torch, dtype)
        )
        for tensor, (shape, dtype) in checkpoint.items()
        if not tensor.endswith("_scale_inv")
    }
    return made, {tensor for tensor, (_, dtype) in checkpoint.items() if dtype == "float8_e4m3fn"}


def quantise(tensors, names):
    """Returns an FP8 checkpoint of whole tensors, by vLLM's formula: a block's scale is its largest magnitude over 448, and
    its elements are multiplied by the reciprocal of the scale."""
    import torch

    made = dict(tensors)
    for name in names:
        tensor = tensors[name].float()
        rows, columns = (-(-n // 128) for n in tensor.shape)
        padded = torch.zeros(rows * 128, columns * 128, dtype=torch.float32)
        padded[: tensor.shape[0], : tensor.shape[1]] = tensor
        blocks = padded.reshape(rows, 128, columns, 128)
        scales = blocks.abs().amax(dim=(1, 3), keepdim=True) / 448
        codes = (blocks * (1 / scales)).reshape(padded.shape)[: tensor.shape[0], : tensor.shape[1]]
        made[name] = codes.to(torch.float8_e4m3fn)
        made[f"{name}_scale_inv"] = scales.reshape(rows, columns)
    return made


def as_module(tensors):
    """Returns a module whose parameters have these names."""
    import torch

    root = torch.nn.Module()
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        owner = root
        for step in path:
            if not hasattr(owner, step):
                owner.add_module(step, torch.nn.Module())
            owner = getattr(owner, step)
        owner.register_parameter(leaf, torch.nn.Parameter(tensor, requires_grad=False))
    return root


def save(model, version, folder):
    """Writes a checkpoint to a new folder, and that of its draft model to a folder `draft` in it."""
    tensors, config = weights(model, version), config_of(model)
    drafts = {name: tensors.pop(name) for name in list(tensors) if name.startswith(DRAFT)}
    _write(tensors, {name: value for name, value in config.items() if name != "draft"}, folder)
    if drafts:
        drafts = {name.removeprefix(DRAFT): tensor for name, tensor in drafts.items()}
        _write(drafts, config | config["draft"], folder / "draft")
    if "vision_config" in config:
        save_processor(config, folder)


def _write(tensors, config, folder):
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def save_tokenizer(model, folder):
    """Writes a tokenizer with a word for each token of a model into its folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(config_of(model)["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="w1", pad_token="w2", unk_token="w0"
    ).save_pretrained(folder)


def digests(model):
    """Returns the SHA-256 of each parameter of a torch module, by name."""
    from hashlib import sha256

    import torch

    return {
        name: sha256(tensor.detach().cpu().contiguous().view(torch.uint8).numpy()).hexdigest()
        for name, tensor in model.named_parameters()
        if tensor.numel()
    }
