"""The cache of converted files: used when whole, made again when not."""

import json
from pathlib import Path

import pytest
import torch
from oracles.gguf_writer import tiny_gguf

from unweave.errors import UnweaveError
from unweave.model import cache, gguf_cache, gguf_families
from unweave.model.loading import load

pytestmark = pytest.mark.usefixtures("own_cache")


def cached_file() -> Path:
    (path,) = cache.folder().iterdir()
    return path


def test_second_load_reads_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = tiny_gguf(tmp_path)
    assert not gguf_cache.is_cached(path)
    first = load(path)
    assert gguf_cache.is_cached(path)

    def never(*args: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(gguf_cache, "_convert", never)
    second = load(path)
    tokens = torch.tensor([[5, 6, 7]])
    assert torch.equal(first.logits(tokens), second.logits(tokens))
    assert second.encode(" Mary 17") == first.encode(" Mary 17")
    # Another content is another file, whatever it is called.
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(AssertionError, match="converted again"):
        load(path)


@pytest.mark.parametrize("damage", ["cut", "byte of a tensor", "byte of the header", "empty"])
def test_broken_cache_is_rebuilt(damage: str, tmp_path: Path) -> None:
    _, path = tiny_gguf(tmp_path)
    tokens = torch.tensor([[5, 6, 7]])
    wanted = load(path).logits(tokens)
    file = cached_file()
    whole = file.read_bytes()
    broken = bytearray(whole)
    broken[-5 if damage == "byte of a tensor" else 200] ^= 1
    if damage in ("cut", "empty"):
        broken = broken[: 0 if damage == "empty" else -100]
    file.unlink()  # the first model has it mapped
    file.write_bytes(broken)
    assert torch.equal(load(path).logits(tokens), wanted)
    assert cached_file().read_bytes() == whole


def test_other_version_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = tiny_gguf(tmp_path)
    load(path)
    monkeypatch.setattr(gguf_cache, "version", lambda package: "0")
    assert not gguf_cache.is_cached(path)
    load(path)
    assert len(list(cache.folder().iterdir())) == 2


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = tiny_gguf(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("UNWEAVE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UnweaveError, match=r"cannot write the cache in .*file.*UNWEAVE_CACHE"):
        load(path)


def test_failed_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = tiny_gguf(tmp_path)

    def broken(*args: object) -> None:
        raise RuntimeError("half way")

    monkeypatch.setattr(gguf_families, "dequantised", broken)
    with pytest.raises(RuntimeError, match="half way"):
        load(path)
    assert list(cache.folder().iterdir()) == []


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNWEAVE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.folder() == Path("/somewhere/unweave")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == Path.home() / ".cache" / "unweave"


def test_header_is_plain_safetensors(tmp_path: Path) -> None:
    """The cache file is one that every safetensors reader takes, aligned and described."""
    load(tiny_gguf(tmp_path)[1])
    content = cached_file().read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert json.loads(header.pop("__metadata__")["about"])["model_class"] == "LlamaForCausalLM"
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(content) - 8 - length
