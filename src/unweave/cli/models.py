"""`unweave models`: the architectures that can be read, and the available models."""

import json
from typing import Annotated, Any

import typer

from unweave.cli import commands


@commands.register("models")
def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List the supported architectures and the available models."""
    found = _available()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _show(found)


def _available() -> dict[str, Any]:
    from unweave.model import cache, sources
    from unweave.model.checkpoint import architectures
    from unweave.model.gguf_cache import is_cached
    from unweave.model.synthetic import synthetic_models

    bundled = []
    for name, model in sources.BUNDLED.items():
        path = model.path()
        # Only GGUF is converted and so kept in the cache; safetensors are used as they are.
        converted = None if path is None or path.suffix != ".gguf" else is_cached(path)
        bundled.append(
            {
                "name": name,
                "default": name == sources.DEFAULT,
                "note": model.note,
                "path": None if path is None else str(path),
                "cached": converted,
                "install": model.install,
            }
        )
    return {
        "bundled": bundled,
        "synthetic": [*synthetic_models],
        "hub": sources.available_hub_models(),
        "transformer_lens": sources.LENS_NAMES,
        "architectures": [
            {"name": name, "gguf": architectures[name].gguf} for name in architectures
        ],
        "cache": str(cache.folder()),
    }


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False)  # a path may have brackets in it
    table = Table("model", "what", "available", title="Bundled models", title_justify="left")
    for model in found["bundled"]:
        name = f"{model['name']} (default)" if model["default"] else model["name"]
        table.add_row(name, model["note"], _state(model))
    console.print(table)
    for model in found["bundled"]:
        if model["path"] is None:
            console.print(f"To install {model['name']}: {model['install']}", soft_wrap=True)
    if found["hub"]:
        console.print(f"Available from the hub: {', '.join(found['hub'])}")
    console.print(
        f"Built by code, circuit known (tasks of the same names): {', '.join(found['synthetic'])}"
    )
    names = [
        f"{family['name']} (also GGUF)" if family["gguf"] else family["name"]
        for family in found["architectures"]
    ]
    console.print(f"Architectures: {', '.join(names)}")
    console.print(f"TransformerLens checkpoints: {', '.join(found['transformer_lens'])}")
    console.print(
        "Also: any name on the Hugging Face hub, a folder with config.json and safetensors, "
        "a .gguf file."
    )
    console.print(f"Cache: {found['cache']}")


def _state(model: dict[str, Any]) -> str:
    if model["path"] is None:
        return "no"
    if model["cached"] is None:
        return "yes"
    return "yes, converted" if model["cached"] else "yes, converted on first use"
