"""`tracr:…`: transformers compiled from RASP programs (Lindner et al., 2023), as our records.

Each model runs two programs side by side, in two halves of the residual stream; the logits read
one of them. So half of the nodes are busy with something else, and the circuit of the task is the
program that compiled to the other half.

Programs are compiled for causal attention and read at the last position, where it changes nothing
for these programs. tracr is an extra: `pip install "unweave[tracr]"`.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from unweave.errors import UnweaveError
from unweave.model.synthetic import SyntheticModel, synthetic_models
from unweave.model.synthetic.tracr_compile import VOCABULARY, Compiled, compile_program, tracr
from unweave.model.synthetic.tracr_network import beside, network, wiring


@dataclass(frozen=True)
class Program:
    """A RASP program.

    Args:
        make: Writes it, once tracr is there.
        beside: The program in the other half of the model.
        positional: Variables that depend on the length and positions alone.
    """

    make: Callable[[], Any]
    beside: str
    positional: tuple[str, ...] = ()


def _reverse() -> Any:
    lib, rasp = tracr("compiler.lib"), tracr("rasp.rasp")
    return lib.make_reverse(rasp.tokens)


def _proportion() -> Any:
    lib, rasp = tracr("compiler.lib"), tracr("rasp.rasp")
    return lib.make_frac_prevs((rasp.tokens == "a").named("is_a"))


def _hist() -> Any:
    return tracr("compiler.lib").make_hist()


def _balance() -> Any:
    lib, rasp = tracr("compiler.lib"), tracr("rasp.rasp")
    return lib.make_pair_balance(rasp.tokens, "a", "b")


PROGRAMS = {
    "reverse": Program(_reverse, "hist", positional=("length", "opp_idx", "opp_idx-1")),
    "proportion": Program(_proportion, "reverse"),
    "hist": Program(_hist, "reverse"),
    "balance": Program(_balance, "reverse"),
}


def available() -> bool:
    """Whether tracr is installed."""
    return importlib.util.find_spec("tracr") is not None


@cache
def compiled(name: str) -> Compiled:
    """A program, compiled once.

    Raises:
        UnweaveError: When tracr is not installed.
    """
    if not available():
        raise UnweaveError(
            f"tracr:{name} is compiled by tracr, which is not installed: "
            'pip install "unweave[tracr]"'
        )
    return compile_program(PROGRAMS[name].make())


def _builder(name: str) -> Callable[[], SyntheticModel]:
    def build() -> SyntheticModel:
        program = PROGRAMS[name]
        whole, nodes = beside(compiled(name), compiled(program.beside))
        return SyntheticModel(network(whole), VOCABULARY, wiring(whole, nodes, program.positional))

    return build


for _name in PROGRAMS:
    synthetic_models.register(f"tracr:{_name}")(_builder(_name))
