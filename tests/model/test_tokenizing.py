"""Tokenizers without offsets: Marian's, whose pieces are aligned with the text here."""

import importlib.util
import json
import logging
from pathlib import Path

import pytest
from oracles.tiny_folders import words

from unweave import cli
from unweave.errors import UnweaveError
from unweave.model.checkpoint import architectures
from unweave.model.loading import load
from unweave.model.tokenizing import aligned
from unweave.testing.oracle import build

TEXT = "Mary gave the drinks to John."
CORPUS = [TEXT, "Hello world", "Who is it?", "John and Mary went to the store."] * 20


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Marian with two sentencepiece models and one vocabulary, as on the hub."""
    spm = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("marian")
    build(architectures["marian"].tiny["scaled embedding"]).save_pretrained(folder)
    for name, size in (("source", 50), ("target", 40)):
        with (folder / f"{name}.spm").open("wb") as file:
            spm.SentencePieceTrainer.train(
                sentence_iterator=iter(CORPUS),
                model_writer=file,
                vocab_size=size,
                hard_vocab_limit=False,
                minloglevel=2,
            )
    pieces: dict[str, int] = {"</s>": 0, "<unk>": 1}
    for name in ("source", "target"):
        model = spm.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        for i in range(model.get_piece_size()):
            if len(pieces) < 60:
                pieces.setdefault(model.id_to_piece(i), len(pieces))
    (folder / "vocab.json").write_text(json.dumps(pieces | {"<pad>": 60}))
    settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_marian_takes_text(marian: Path) -> None:
    model = load(marian)
    assert model.tokenizer is not None
    assert not model.tokenizer.is_fast
    ids, spans = model.encode(TEXT)
    assert ids == model.tokenizer(TEXT)["input_ids"]
    assert ids[-1] == model.tokenizer.eos_token_id
    assert spans[-1] == (0, 0)
    assert "".join(TEXT[start:end] for start, end in spans) == TEXT
    for token, (start, end) in zip(ids[:-1], spans, strict=False):
        piece = model.tokenizer.convert_ids_to_tokens(token)
        if piece != "<unk>":
            assert TEXT[start:end].strip() == piece.replace("▁", "")
    assert model.logits(TEXT).shape == (1, 1, 61)


def test_answers_of_a_translator_are_cut_as_its_target(marian: Path) -> None:
    model = load(marian)
    assert model.tokenizer is not None
    ids = {
        text: model.tokenizer(text_target=text, add_special_tokens=False)["input_ids"]
        for text in ("Mary", "the", "a")
    }
    for text, expected in ids.items():
        assert model.single_token(text) == (expected[0] if len(expected) == 1 else None)


def hide_sentencepiece(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = importlib.util.find_spec

    def find(name: str, *args: object) -> object:
        return None if name == "sentencepiece" else usual(name)

    monkeypatch.setattr(importlib.util, "find_spec", find)


def fails(*args: object, **options: object) -> None:
    raise ValueError("Unrecognized configuration class")


def test_missing_sentencepiece_is_said(marian: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    hide_sentencepiece(monkeypatch)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fails)
    wanted = r"source\.spm\) needs sentencepiece: pip install 'unweave\[sentencepiece\]'"
    with pytest.raises(UnweaveError, match=wanted):
        load(marian)


def test_check_needs_no_tokenizer(
    marian: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fails)
    assert cli.main(["check", str(marian)]) == 0
    assert "agrees" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "pieces", "expected"),
    [
        ("a b", ["▁a", "▁b"], ["a", " b"]),
        ("a  b", ["▁a", "▁", "b"], ["a", "  ", "b"]),
        ("ab c", ["▁a", "b", "▁c", None], ["a", "b", " c", ""]),
        ("x … y", ["▁x", "▁...", "▁y"], ["x", " … ", "y"]),
        ("x ☃☃ y z", ["▁x", "<unk>", "▁y", "▁z"], ["x", " ☃☃ ", "y", " z"]),
        ("☃", ["<unk>"], ["☃"]),
        ("a☃", ["▁a", "<unk>", None], ["a", "☃", ""]),
        ("", [None], [""]),
        ("ab", ["<unk>", "<unk>", "b"], ["a", "a", "b"]),
    ],
)
def test_pieces_are_aligned_with_the_text(
    text: str, pieces: list[str | None], expected: list[str]
) -> None:
    assert [text[start:end] for start, end in aligned(text, pieces)] == expected


def test_a_text_that_is_too_long_is_said_once(
    marian: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By our error: what transformers' tokenizers say of it would be a second line."""
    words(folder)
    said: list[str] = []
    logger = logging.getLogger("transformers.tokenization_utils_base")
    monkeypatch.setattr(logger, "warning", lambda text, *_: said.append(text))
    for place in (folder, marian):
        path = place / "tokenizer_config.json"
        usual = path.read_text() if path.exists() else "{}"
        path.write_text(json.dumps({**json.loads(usual), "model_max_length": 4}))
        ids, _ = load(place).encode("a b a b a b")
        path.write_text(usual)
        assert len(ids) > 4
    assert said == []


def test_tokens_outside_of_the_vocabulary_are_an_error(folder: Path) -> None:
    words(folder)
    model = load(folder)
    with pytest.raises(UnweaveError, match=r"text 1 of 1 has the token 61, and .* knows 0–60"):
        model.rows([[1, 61]])
    with pytest.raises(UnweaveError, match=r"has the token -1"):
        model.rows([[1, -1, 70]])
