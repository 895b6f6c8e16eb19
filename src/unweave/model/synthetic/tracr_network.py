"""Compiled programs as our records: two side by side in one model, and their wiring."""

from collections.abc import Collection, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from unweave.model import weights as w
from unweave.model.synthetic import Edge, Wiring
from unweave.model.synthetic.tracr_compile import Compiled, CraftPart, Matrix
from unweave.sites import Point, Site

BESIDE = "beside "  # in front of the variables of the program that is not read


def beside(one: Compiled, other: Compiled) -> tuple[Compiled, tuple[Site, ...]]:
    """Two programs in one model; the logits read the first. Also the first one's own nodes."""
    width, extra = len(one.labels), len(other.labels)
    first = {p.site: p for p in one.parts}
    heads = [sum(p.site.point == Point("z", i) for p in one.parts) for i in range(one.layers)]
    parts = [_moved(part, part.site, 0, width + extra) for part in one.parts]
    for part in other.parts:
        site = part.site
        if site.point.kind == "z":
            shift = heads[site.point.layer] if site.point.layer < len(heads) else 0
            site = Site(site.point, (site.unit or 0) + shift)
        moved = _moved(part, site, width, width + extra)
        if site in first:  # one MLP a layer: the two lie in it side by side
            mine = next(p for p in parts if p.site == site)
            parts.remove(mine)
            moved = CraftPart(
                site,
                {"in": torch.cat((mine.reads["in"], moved.reads["in"]), 1)},
                torch.cat((mine.writes, moved.writes), 0),
            )
        parts.append(moved)
    whole = replace(
        one,
        parts=tuple(parts),
        labels=one.labels + tuple(BESIDE + label for label in other.labels),
        tokens=torch.cat((one.tokens, other.tokens), 1),
        positions=torch.cat((one.positions, other.positions), 1),
        output=functional.pad(one.output, (0, extra)),
    )
    return whole, tuple(first)


def _moved(part: CraftPart, site: Site, at: int, width: int) -> CraftPart:
    def pad(x: Matrix) -> Matrix:
        return functional.pad(x, (0, 0, at, width - at - len(x)))

    reads = {name: pad(matrix) for name, matrix in part.reads.items()}
    return CraftPart(site, reads, pad(part.writes.T).T)


def network(program: Compiled) -> w.Network:
    """The parts as records; a layer without heads gets one that does nothing."""
    d_head = max(m.shape[1] for p in program.parts for n, m in p.reads.items() if n != "in")
    blocks = tuple(_block(program, layer, d_head) for layer in range(program.layers))
    stack = w.Stack(w.Embedding(program.tokens, positions=program.positions), blocks)
    return w.Network(stack, w.Head((w.Linear(program.output),), labels=program.values))


def _block(program: Compiled, layer: int, d_head: int) -> w.Block:
    width = len(program.labels)
    heads = [part for part in program.parts if part.site.point == Point("z", layer)]
    count = max(1, len(heads))
    maps = {name: torch.zeros(count, d_head, width) for name in "qkv"}
    out = torch.zeros(width, count, d_head)
    for part in heads:
        unit = part.site.unit or 0
        for name, matrix in part.reads.items():
            maps[name][unit, : matrix.shape[1]] = matrix.T
        out[:, unit, : len(part.writes)] = part.writes.T
    attention = w.Attention(
        w.Linear(maps["q"]),
        w.Linear(maps["k"]),
        w.Linear(maps["v"]),
        w.Linear(out.flatten(1)),
        heads=count,
        kv_heads=count,
        d_head=d_head,
        scale=1.0,
        causal=True,
    )
    mlps = [part for part in program.parts if part.site.point == Point("mlp", layer)]
    branches = [w.Branch(attention)]
    for part in mlps:
        inp, back = w.Linear(part.reads["in"].T.contiguous()), w.Linear(part.writes.T.contiguous())
        branches.append(w.Branch(w.Mlp(inp, back, w.Activation("relu"))))
    return w.Block(tuple(branches))


def wiring(
    program: Compiled, nodes: Collection[Site], positional: Collection[str]
) -> dict[str, Wiring]:
    """The program as a circuit: who reads what whom wrote.

    Under mean and counterfactual ablation, variables that are the same in every prompt of a length
    carry nothing: neither the nodes that write only them, nor the edges that carry only them.

    Args:
        nodes: The nodes of the program that is read.
        positional: Variables that depend on the length and positions alone.
    """
    constant, found = {"one", "bos", "indices", *positional}, {}
    mine = torch.tensor([not label.startswith(BESIDE) for label in program.labels])
    for ablation in ("mean", "counterfactual", "zero"):
        fixed = constant if ablation != "zero" else set()
        carried = torch.tensor([label not in fixed for label in program.labels]) & mine
        kept = [p for p in program.parts if p.site in nodes and bool(_written(p)[carried].any())]
        kept.sort(key=lambda part: (part.site.point.depth, part.site.unit or 0))
        edges = tuple(_edges(program, kept, carried))
        found[ablation] = Wiring(tuple(part.site for part in kept), edges)
    return found


def _written(part: CraftPart) -> Tensor:
    return (part.writes != 0).any(0)


def _edges(program: Compiled, parts: list[CraftPart], carried: Tensor) -> Iterator[Edge]:
    embedded = (program.tokens != 0).any(0) | (program.positions != 0).any(0)
    writers = [(Site(Point("embed")), embedded), *((p.site, _written(p)) for p in parts)]
    for upstream, written in writers:
        for part in parts:
            if upstream.point.depth >= part.site.point.depth:
                continue
            for name, matrix in part.reads.items():
                if bool((written & (matrix != 0).any(1) & carried).any()):
                    yield upstream, _input(part.site, name)
        if bool((written & (program.output != 0).any(0) & carried).any()):
            yield upstream, Site(Point("logits"))


def _input(site: Site, name: str) -> Site:
    return site if name == "in" else Site(Point(name, site.point.layer), site.unit)  # type: ignore[arg-type]
