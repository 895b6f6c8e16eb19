"""Tiny checkpoints on disk: a tokenizer of letters, a TransformerLens training run."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from unweave.model.checkpoint import Tiny

GPT2 = Tiny(
    "GPT2LMHeadModel",
    {"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32},
)
TOKENS = torch.tensor([[5, 6, 7, 8]])
LENS = {
    "d_model": 8,
    "n_layers": 1,
    "n_heads": 2,
    "d_head": 4,
    "n_ctx": 16,
    "d_vocab": 61,
    "attn_only": True,
    "act_fn": "gelu",
    "normalization_type": "LNPre",
    "eps": 1e-5,
    "tokenizer_name": "nobody/tokenizer",
}


def words(folder: Path, first: str | None = None) -> None:
    """Writes a tokenizer of single letters; `first` is put before every text, as BOS."""
    from transformers import PreTrainedTokenizerFast

    vocabulary = {letter: i for i, letter in enumerate(["<s>", *"abcdefgh", "?"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    if first:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, 0)]
        )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>").save_pretrained(folder)


def lens_state() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {
        "embed.W_E": (61, 8),
        "pos_embed.W_pos": (16, 8),
        **{f"blocks.0.attn.W_{part}": (2, 8, 4) for part in "QKV"},
        **{f"blocks.0.attn.b_{part}": (2, 4) for part in "QKV"},
        "blocks.0.attn.W_O": (2, 4, 8),
        "blocks.0.attn.b_O": (8,),
        "unembed.W_U": (8, 61),
        "unembed.b_U": (61,),
    }
    return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}


def lens_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LENS))
    torch.save(lens_state(), folder / "model_final.pth")
    return folder
