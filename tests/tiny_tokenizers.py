"""Tiny random decoders with tokenizers of several kinds, made from the tasks' own words."""

import re
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import unweave.behaviours
from unweave.model.loading import from_transformers
from unweave.model.model import Model

SOURCES = "\n".join(p.read_text() for p in Path(unweave.behaviours.__path__[0]).glob("*.py"))
WORDS = sorted(set(re.findall(r"[A-Za-z_]+", SOURCES)) | {"keys", "are"})
PLURALS = [f"{word}s" for word in WORDS]
CORPUS = [f"x {word}" for word in WORDS + PLURALS]


def byte_level_bpe(digits: int) -> PreTrainedTokenizerFast:
    """As GPT-2's, a token having so many digits at most."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rf"\d{{1,{digits}}}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=30_000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<bos>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        [*CORPUS, *(f"{i:0{digits}}" for i in range(10**digits))], trainer
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>")


def metaspace() -> PreTrainedTokenizerFast:
    """As Llama's: a text's first word gets a space, a lone space is a token, digits are single."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Digits(individual_digits=True)]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=30_000, special_tokens=["<unk>", "<s>"], show_progress=False
    )
    tokenizer.train_from_iterator([*CORPUS, "0123456789 ,.:()\"\n'"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


def wordpiece() -> PreTrainedTokenizerFast:
    """As BERT's: lower case, words without their spaces, digits as continuations."""
    tokens = ["[UNK]", "[MASK]", *"0123456789", *(f"##{i}" for i in range(10)), *"()[],.:\"'="]
    tokens += sorted({word.lower() for word in WORDS + PLURALS})
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", mask_token="[MASK]"
    )


def tiny(name: str, tokenizer: PreTrainedTokenizerFast, bos: bool) -> Model:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    network = from_transformers(LlamaForCausalLM(config)).network
    return Model(name, network, "llama", tokenizer, bos)
