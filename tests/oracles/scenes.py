"""Drawn scenes for property tests: a tiny model of any family, a batch, sources, a rule set."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st
from oracles.tiny import (
    CASES,
    all_sites,
    outputs_of,
    ragged,
    side_of,
    tiny_inputs,
    tiny_model,
)

from unweave.decomposition.ruleset import rulesets
from unweave.model.model import Model
from unweave.model.program import Inputs

# Every registered set, and mixtures of the kind that docs/method.md §10 measures.
RULES = [*rulesets, "removal, gate=half", "paper, attention=frozen, clamp=everywhere"]
WITH_METRIC = [case for case in CASES if outputs_of(tiny_model(*case)) > 2]


@dataclass(frozen=True, eq=False)
class Scene:
    """What a property is tested on; `other` holds counterfactual prompts of the same shape."""

    name: str
    variant: str
    model: Model
    inputs: Inputs
    other: Inputs
    sources: list[list[str]]
    rules: str

    def __repr__(self) -> str:
        mask = self.inputs.mask
        decoder = "" if self.inputs.decoder is None else f" → {self.inputs.decoder.mask.tolist()}"
        return (
            f"Scene({self.name}, {self.variant}, {self.rules!r}, {self.sources}, "
            f"mask {mask.int().tolist()}{decoder})"
        )

    def _repr_pretty_(self, printer, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would print every weight

    @property
    def causal(self) -> bool:
        return self.model.network.body.blocks[0].attention.causal


@st.composite
def scenes(
    draw: st.DrawFn,
    cases: Sequence[tuple[str, str]] = CASES,
    rules: Sequence[str] = RULES,
    padded: bool = True,
    positioned: bool = False,
    rows: tuple[int, int] = (1, 3),
) -> Scene:
    """Draws a scene.

    Args:
        padded: Rows may be of several lengths, padded on the right or on the left.
        positioned: Every source names a position.
    """
    name, variant = draw(st.sampled_from(cases))
    model = tiny_model(name, variant)
    length, count = draw(st.integers(2, 7)), draw(st.integers(*rows))
    pair = [tiny_inputs(name, variant, length, count, seed) for seed in (0, 1)]
    if padded and pair[0].pixels is None:
        # A classifier reads the first position, which has to be a token.
        sides = ["right"] if model.network.head.first else ["right", "left"]
        pair = _padded(draw, pair, draw(st.sampled_from(sides)))
    inputs, other = pair
    sources = [_source(draw, model, inputs, positioned) for _ in range(draw(st.integers(1, 3)))]
    return Scene(name, variant, model, inputs, other, sources, draw(st.sampled_from(rules)))


def _padded(draw: st.DrawFn, pair: list[Inputs], side) -> list[Inputs]:
    def one(batch: list[Inputs]) -> list[Inputs]:
        width = batch[0].mask.shape[1]
        lengths = [draw(st.integers(1, width)) for _ in batch[0].mask]
        extra = draw(st.integers(0, 2))
        return [ragged(x, lengths, width + extra, side) for x in batch]

    whole = one(pair)
    if pair[0].decoder is None:
        return whole
    decoders = one([x.decoder for x in pair if x.decoder is not None])
    return [
        Inputs(x.mask, x.tokens, x.types, None, decoder)
        for x, decoder in zip(whole, decoders, strict=True)
    ]


def _source(draw: st.DrawFn, model: Model, inputs: Inputs, positioned: bool) -> list[str]:
    sites = all_sites(model)
    kinds = sorted({(site.point.kind, site.point.stack) for site in sites})
    chosen = []
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        kind = draw(st.sampled_from(kinds))  # by kind first: neurons and heads are many
        alike = [site for site in sites if (site.point.kind, site.point.stack) == kind]
        site = draw(st.sampled_from(alike))
        shortest = int(side_of(site.point, inputs).mask.sum(-1).min())
        places = range(-1, shortest) if positioned else [None, *range(-1, shortest)]
        chosen.append(str(site.at(draw(st.sampled_from(places)))))
    return chosen
