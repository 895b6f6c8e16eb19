"""Damaged tokenizers, found when text is to be read."""

import json
from pathlib import Path
from typing import Any

from bad_input.case import Case, Make, edit, file, folder, steps
from oracles.tiny_folders import words

UNREADABLE = "cannot be read"


def changed(**fields: Any) -> Make:
    """A tiny GPT-2 with a tokenizer of letters, fields of tokenizer.json changed."""
    return steps(folder("gpt2"), words, edit("tokenizer.json", **fields))


def model(**fields: Any) -> Make:
    """The same, fields of the tokenizer's model changed."""

    def make(target: Path) -> None:
        path = target / "tokenizer.json"
        whole = json.loads(path.read_text())
        whole["model"] |= fields
        path.write_text(json.dumps(whole))

    return steps(folder("gpt2"), words, make)


def table(content: str | bytes) -> Make:
    return steps(folder("gpt2"), words, file("tokenizer.json", content))


TOKENIZERS: list[tuple[str, Make, str]] = [
    ("none", folder("gpt2"), "has no tokenizer"),
    ("empty file", table(""), UNREADABLE),
    ("cut", table('{"version": "1.0"'), UNREADABLE),
    ("empty object", table("{}"), UNREADABLE),
    ("a list", table("[]"), UNREADABLE),
    ("a number", table("3"), UNREADABLE),
    ("not text", table(b"\xff\xfe\x00"), UNREADABLE),
    ("no model", changed(model=...), UNREADABLE),
    ("model is null", changed(model=None), UNREADABLE),
    ("unknown model", model(type="Foo"), UNREADABLE),
    ("vocabulary is a list", model(vocab=["a", "b"]), UNREADABLE),
    ("ids are text", model(vocab={"a": "x"}), UNREADABLE),
    ("negative ids", model(vocab={"a": -1}), UNREADABLE),
    ("ids out of the model's range", model(vocab={"a": 99, "?": 100, "<s>": 0}), "token 99"),
    ("merges of unknown pieces", model(type="BPE", vocab={"a": 0}, merges=["x y"]), UNREADABLE),
    ("merges of another type", model(type="BPE", vocab={"a": 0}, merges=3), UNREADABLE),
    ("unknown normaliser", changed(normalizer={"type": "Foo"}), UNREADABLE),
    ("unknown cut", changed(pre_tokenizer={"type": "Foo"}), UNREADABLE),
    ("unknown post-processor", changed(post_processor={"type": "Foo"}), UNREADABLE),
    ("added tokens of another type", changed(added_tokens=3), UNREADABLE),
    (
        "sentencepiece that is text",
        steps(folder("marian"), file("source.spm", "x"), file("vocab.json", "{}")),
        UNREADABLE,
    ),
    ("vocab.json that is text", steps(folder("gpt2"), file("vocab.json", "x")), UNREADABLE),
    ("vocab.txt of a BERT alone", steps(folder("bert"), file("vocab.txt", "a\nb")), ""),
    (
        "tokenizer_config.json that is text",
        steps(folder("gpt2"), words, file("tokenizer_config.json", "x")),
        UNREADABLE,
    ),
]

CASES = [
    *(Case(name, "attribute a --model {bad}", says, make) for name, make, says in TOKENIZERS),
    Case(
        "a text longer than the model takes",
        f"attribute '{'a b ' * 40}' --model {{bad}}",
        "takes at most 32",
        steps(folder("gpt2"), words),
    ),
    Case(
        "a text longer than a rotary model takes",
        f"attribute '{'a b ' * 40}' --model {{bad}}",
        "takes at most 64",
        steps(folder("llama"), words),
    ),
]
