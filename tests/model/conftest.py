"""Checkpoints on disk to load and to break."""

import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from oracles.tiny_folders import GPT2

from unweave import cli
from unweave.testing.oracle import build


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models do not belong into the user's cache."""
    monkeypatch.setenv("UNWEAVE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 as `save_pretrained` writes it, without tokenizer."""
    folder = tmp_path_factory.mktemp("gpt2")
    build(GPT2).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return shutil.copytree(saved, tmp_path / "model")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    path = tmp_path / "hub"
    path.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(path))
    return path


@pytest.fixture
def unreachable(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **options: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", offline)


@pytest.fixture
def error_of(capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Runs `unweave check` on a model that cannot be loaded and gives the line that it prints."""

    def run(model: str) -> str:
        assert cli.main(["check", model]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith("error: ")
        assert output.err.count("\n") == 1
        return output.err

    return run
