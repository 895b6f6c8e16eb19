"""Tokenizers rebuilt from the metadata of a GGUF file.

A file has the vocabulary and, by name only, how text is cut before it is merged into tokens; the
cuts themselves are here. A name that is not known gives no tokenizer, since nearly right ids would
spoil every result in silence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers import pre_tokenizers as cuts

_CONTROL, _USER_DEFINED = 3, 4  # llama.cpp's types of tokens that are matched whole
_SPACE = "▁"  # sentencepiece's sign for a space

_SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


@dataclass(frozen=True)
class Cut:
    """How byte-level text is cut before merging.

    Args:
        pattern: What stays together; None is GPT-2's own pattern.
        single_digits: Whether every digit stands alone.
        compose: Whether Unicode is composed first (NFC).
        whole_words: Whether a word in the vocabulary is taken without looking at the merges.
        adds_bos: What llama.cpp does when the file does not say.
    """

    pattern: str | None = None
    single_digits: bool = False
    compose: bool = False
    whole_words: bool = False
    adds_bos: bool = False


def _words(digits: str) -> str:
    """The pattern of GPT-4 and its followers: words with what precedes them, digits, the rest."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_LLAMA3 = Cut(_words(r"\p{N}{1,3}"), whole_words=True, adds_bos=True)
_QWEN2 = Cut(_words(r"\p{N}"), compose=True)
_CUTS = {
    "gpt-2": Cut(),
    "smollm": Cut(single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


@dataclass(frozen=True)
class TokenizerParts:
    """What makes a transformers tokenizer, as plain data that a cache can keep.

    Args:
        json: The tokenizers library's own serialisation.
        special: The special tokens by role ("bos_token"), and the chat template.
        adds_bos: Whether the model was trained with a BOS token in front.
    """

    json: str
    special: Mapping[str, str]
    adds_bos: bool


def tokenizer_parts(metadata: Mapping[str, Any]) -> TokenizerParts | None:
    """The tokenizer that a file describes; None where it describes none that is known here."""
    ggml = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    cut = _CUTS.get(ggml.get("pre", ""))
    if ggml.get("model") == "gpt2" and cut is not None and "merges" in ggml:
        tokenizer, adds_bos = _byte_level(ggml["tokens"], ggml["merges"], cut), cut.adds_bos
    elif ggml.get("model") == "llama":
        tokenizer, adds_bos = _sentencepiece(ggml), True
    else:
        return None
    _add_whole_tokens(tokenizer, ggml["tokens"], ggml.get("token_type", ()))
    special = {
        role: ggml["tokens"][ggml[key]]
        for role, key in _SPECIAL.items()
        if ggml.get(key) is not None
    }
    if template := metadata.get("tokenizer.chat_template"):
        special["chat_template"] = template
    return TokenizerParts(tokenizer.to_str(), special, bool(ggml.get("add_bos_token", adds_bos)))


def _byte_level(tokens: list[str], merges: list[str], cut: Cut) -> Tokenizer:
    """Byte-pair encoding over bytes, GPT-2's kind."""
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=cut.whole_words))
    if cut.compose:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[cuts.PreTokenizer] = []
    if cut.single_digits:
        steps.append(cuts.Digits(individual_digits=True))
    if cut.pattern is not None:
        steps.append(cuts.Split(Regex(cut.pattern), behavior="isolated"))
    steps.append(cuts.ByteLevel(add_prefix_space=False, use_regex=cut.pattern is None))
    tokenizer.pre_tokenizer = cuts.Sequence(steps)
    # A token's span includes its leading space, as in GPT-2's own tokenizer.
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(ggml: Mapping[str, Any]) -> Tokenizer:
    """Byte-pair encoding over characters, with bytes for those that are not in the vocabulary."""
    # llama.cpp writes runs of spaces as such, the vocabulary with sentencepiece's sign.
    tokens = [_SPACE * len(t) if t and not t.strip(" ") else t for t in ggml["tokens"]]
    prefix = ggml.get("add_space_prefix", True)
    unknown = ggml.get("unknown_token_id")
    tokenizer = Tokenizer(
        models.BPE(
            {token: i for i, token in enumerate(tokens)},
            list(_merges(tokens)),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
    )
    steps: list[decoders.Decoder] = [
        decoders.Replace(_SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges(tokens: list[str]) -> Iterable[tuple[str, str]]:
    """Merges that the vocabulary implies: sentencepiece numbers pieces in the order it made them,
    and joins any two neighbours that together are a piece."""
    index = {token: i for i, token in enumerate(tokens)}
    for token in tokens:
        halves = ((token[:i], token[i:]) for i in range(1, len(token)))
        known = [(left, right) for left, right in halves if left in index and right in index]
        yield from sorted(known, key=lambda pair: (index[pair[0]], index[pair[1]]))


def _add_whole_tokens(tokenizer: Tokenizer, tokens: list[str], types: Iterable[int]) -> None:
    for kind, add in (
        (_CONTROL, tokenizer.add_special_tokens),
        (_USER_DEFINED, tokenizer.add_tokens),
    ):
        whole = [token for token, of in zip(tokens, types, strict=False) if of == kind]
        known = [token for token in whole if tokenizer.token_to_id(token) is not None]
        add([AddedToken(token, normalized=False, special=kind == _CONTROL) for token in known])
