"""Circuits in transformers by contextual decomposition.

Public names are looked up on first use, so that `import unweave` loads neither torch nor
transformers.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unweave.attribution.attribute import attribute
    from unweave.evaluate.api import Evaluation, evaluate
    from unweave.model.loading import load
    from unweave.model.model import Model
    from unweave.report.exchange import read_circuit

__version__ = "0.1.0"

# Public name -> the module that defines it. A new name goes here, above and in `__all__`.
_HOME = {
    "Evaluation": "unweave.evaluate.api",
    "Model": "unweave.model.model",
    "attribute": "unweave.attribution.attribute",
    "evaluate": "unweave.evaluate.api",
    "load": "unweave.model.loading",
    "read_circuit": "unweave.report.exchange",
}

__all__ = ["Evaluation", "Model", "__version__", "attribute", "load", "read_circuit"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Keeps a public name when a folder is called the same.

    Importing `unweave.decompose.split` makes Python set the attribute `decompose` of this package
    to the folder, which would hide a function `unweave.decompose`; that one assignment is dropped.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
