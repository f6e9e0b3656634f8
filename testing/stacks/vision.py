# SPDX-License-Identifier: Apache-2.0
"""Processors and an image for tiny models with vision, in place of those that published checkpoints bring."""

# By the type of a model: its processor's name, and its special tokens by the keys of its config.json.
FAMILIES = {
    "qwen2_5_vl": (
        "Qwen2_5_VLProcessor",
        ("Qwen2VLImageProcessor", "Qwen2VLVideoProcessor"),
        {
            "image_token_id": "<|image_pad|>",
            "video_token_id": "<|video_pad|>",
            "vision_start_token_id": "<|vision_start|>",
            "vision_end_token_id": "<|vision_end|>",
        },
    ),
    "glm4v": (
        "Glm4vProcessor",
        ("Glm4vImageProcessor", "Glm4vVideoProcessor"),
        {
            "image_token_id": "<|image|>",
            "video_token_id": "<|video|>",
            "image_start_token_id": "<|begin_of_image|>",
            "image_end_token_id": "<|end_of_image|>",
            "video_start_token_id": "<|begin_of_video|>",
            "video_end_token_id": "<|end_of_video|>",
        },
    ),
}
PIXELS = 112 * 112


def save_processor(config, folder):
    """Writes the files of a model's processor, whose tokenizer knows one word for each token."""
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    processor, (images, videos), tokens = FAMILIES[config["model_type"]]
    special = {config[key]: token for key, token in tokens.items()}
    words = range(config["text_config"]["vocab_size"])
    vocabulary = {special.get(number, f"w{number}"): number for number in words}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    named = {key.removesuffix("_id"): token for key, token in tokens.items()}
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="w1", pad_token="w2", extra_special_tokens=named
    )
    size = {"shortest_edge": PIXELS // 4, "longest_edge": PIXELS}
    made = getattr(transformers, processor)(
        getattr(transformers, images)(size=size),
        fast,
        getattr(transformers, videos)(size=size),
    )
    made.save_pretrained(folder)


def prompt_with_image(config):
    """Returns the tokens of a prompt with an image, and the image."""
    from PIL import Image

    start = config.get("vision_start_token_id", config.get("image_start_token_id"))
    end = config.get("vision_end_token_id", config.get("image_end_token_id"))
    image = Image.linear_gradient("L").resize((112, 112)).convert("RGB")
    return [3, 4, 5, start, config["image_token_id"], end, 6], image
