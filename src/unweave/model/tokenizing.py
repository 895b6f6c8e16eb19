"""Tokenizers: from a folder, from parts, and the characters that a token covers."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unweave.errors import UnweaveError
from unweave.model.folders import has_tokenizer
from unweave.model.pretrained import LOCAL, quiet, reason

_SPACE = "▁"  # sentencepiece's sign for a space
Span = tuple[int, int]


def folder_tokenizer(folder: Path) -> Any | None:
    """The tokenizer of a folder, or None where it has none."""
    if not has_tokenizer(folder):
        return None
    from transformers import AutoTokenizer

    with quiet():
        try:
            return AutoTokenizer.from_pretrained(folder, **LOCAL)
        except BaseException as error:
            raise unreadable(folder, error) from error


def unreadable(folder: Path, error: BaseException) -> BaseException:
    """The error for a tokenizer that cannot be read; what is not about it stays as it is.

    The tokenizers library raises bare Exceptions, and panics, which are not even those.
    """
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        return error
    pieces = sorted([*folder.glob("*.spm"), *folder.glob("*.model")])
    if pieces and importlib.util.find_spec("sentencepiece") is None:
        return UnweaveError(
            f"the tokenizer in {folder} ({pieces[0].name}) needs sentencepiece: "
            "pip install 'unweave[sentencepiece]'"
        )
    return UnweaveError(
        f"the tokenizer in {folder} cannot be read: {reason(error)}; repair it, or load with "
        "tokenizer=…"
    )


def rebuilt_tokenizer(parts: Mapping[str, Any]) -> Any:
    """A tokenizer from the tokenizers library's JSON and its special tokens by role."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    rebuilt = Tokenizer.from_str(parts["json"])
    return PreTrainedTokenizerFast(tokenizer_object=rebuilt, **parts["special"])


def bare_tokenizer(folder: Path) -> Any | None:
    """The tokenizer of a folder that has tokenizer.json alone, with BERT's special tokens."""
    path = folder / "tokenizer.json"
    if (folder / "config.json").exists() or not path.exists():
        return folder_tokenizer(folder)
    special = {
        f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")
    }
    try:
        text = path.read_text(encoding="utf-8")
        return rebuilt_tokenizer({"json": text, "special": special})
    except BaseException as error:
        raise unreadable(folder, error) from error


def encoded(tokenizer: Any, text: str, special: bool) -> tuple[list[int], list[Span]]:
    """Token ids of a text and the characters that each token covers ((0, 0) for specials)."""
    # Not verbose: a text that is too long is an error of our own, and one line.
    options = {"add_special_tokens": special, "verbose": False}
    if getattr(tokenizer, "is_fast", True):
        coded = tokenizer(text, return_offsets_mapping=True, **options)
        return list(coded["input_ids"]), [(start, end) for start, end in coded["offset_mapping"]]
    ids = list(tokenizer(text, **options)["input_ids"])
    outside = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    pieces = [None if token in outside else tokenizer.convert_ids_to_tokens(token) for token in ids]
    return ids, aligned(text, pieces)


def aligned(text: str, pieces: Sequence[str | None]) -> list[Span]:
    """The characters that each piece covers, for tokenizers that do not say.

    Pieces follow the text: each begins where the one before it ended, after spaces. A piece whose
    characters are not there (an unknown word, a character written differently) covers everything
    up to the next piece that is found.

    Args:
        text: What was cut in pieces.
        pieces: As the vocabulary has them; None for a special token, which covers nothing.
    """
    spans: list[Span] = [(0, 0)] * len(pieces)
    at = 0
    unfound: list[int] = []
    for i, piece in enumerate(pieces):
        if piece is None:
            continue
        wanted = piece.replace(_SPACE, " ").strip(" ")
        start = text.find(wanted, at) if unfound and wanted else _after_spaces(text, at)
        if start < 0 or not text.startswith(wanted, start) or (unfound and not wanted):
            unfound.append(i)
            continue
        for other in unfound:
            spans[other] = (at, start)
        spans[i] = (start if unfound else at, start + len(wanted))
        at, unfound = start + len(wanted), []
    for other in unfound:
        spans[other] = (at, len(text))
    return spans


def _after_spaces(text: str, at: int) -> int:
    return at + len(text[at:]) - len(text[at:].lstrip())
