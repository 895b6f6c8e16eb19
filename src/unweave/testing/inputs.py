"""Random inputs of any kind of transformer: tokens, types, images, decoder tokens."""

from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from unweave.model.program import Inputs

Padding = Literal["none", "right", "either"]

ROWS = 3


def random_inputs(
    config: Any,
    length: int,
    padding: Padding = "none",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Inputs:
    """A batch that a model with this transformers config can take.

    Token types are drawn where the config has several, pixels where it has an image size, and an
    encoder-decoder gets decoder tokens of another length, so that swapped axes show.

    Args:
        config: A transformers config.
        length: Number of positions, padding included.
        padding: Where the rows after the first are shorter: the second always on the right, the
            third on the left with "either".
        dtype: Of pixels.
        seed: Of the draw.
    """
    draw = torch.Generator().manual_seed(seed)
    if getattr(config, "image_size", None) is not None:
        return _random_images(config, dtype, draw)
    inputs = _random_tokens(config, length, padding, draw)
    types = getattr(config, "type_vocab_size", None) or 1
    if types > 1:
        inputs = replace(
            inputs, types=torch.randint(types, inputs.mask.shape, generator=draw) * inputs.mask
        )
    if config.is_encoder_decoder:
        inputs = replace(inputs, decoder=_random_tokens(config, length - 1, padding, draw))
    return inputs


def _random_tokens(config: Any, length: int, padding: Padding, draw: torch.Generator) -> Inputs:
    # Some models take positions from where the padding token is, so no real token may be one.
    vocab, pad = config.vocab_size, config.pad_token_id
    pad = pad if pad is not None and 0 <= pad < vocab else 0
    mask = _mask(length, padding)
    tokens = torch.randint(vocab - 1, mask.shape, generator=draw)
    tokens = tokens + (tokens >= pad)
    return Inputs(mask, tokens.masked_fill(~mask, pad))


def _mask(length: int, padding: Padding) -> Bool[Tensor, "batch position"]:
    if padding == "none":
        return torch.ones(ROWS, length, dtype=torch.bool)
    real = torch.tensor([length, length - 2, (length + 1) // 2])
    mask = torch.arange(length) < real[:, None]
    if padding == "either":
        mask[-1] = mask[-1].flip(0)
    return mask


def _random_images(config: Any, dtype: torch.dtype, draw: torch.Generator) -> Inputs:
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    shape = (ROWS, config.num_channels, height, width)
    pixels = torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)
    patch = config.patch_size
    down, across = (patch, patch) if isinstance(patch, int) else patch
    positions = (height // down) * (width // across) + 1
    return Inputs(torch.ones(ROWS, positions, dtype=torch.bool), pixels=pixels)
