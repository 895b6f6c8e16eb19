"""One head, one MLP or the logits alone: what it puts out, given what each of its inputs reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from unweave.model.algebra import Plain, normalise
from unweave.model.model import Model
from unweave.model.positions import Context, prepare
from unweave.model.program import Inputs, attention, head, mlp
from unweave.model.weights import Attention, Branch, Linear, Mlp, Norm
from unweave.sites import HEAD_KINDS, Point, Site

Residual = Float[Tensor, "*lead position d_model"]
NodeFunction = Callable[[Mapping[str, Residual]], Tensor]
OfHead = Float[Tensor, "batch position d_head"]


@dataclass(eq=False)
class _OneHead(Plain):
    """A run of one head's attention whose query, key and value each read a stream of their own."""

    inputs: Mapping[str, Tensor]

    def linear(self, x: Tensor, w: Linear, place: str) -> Tensor:
        part = place.partition(".")[2]
        return super().linear(self.inputs.get(part, x), w, place)


@dataclass(eq=False)
class _Given(Plain):
    """A run of one head's attention whose query, key and value are given, and whose z is left."""

    inputs: Mapping[str, Tensor]

    def linear(self, x: Tensor, w: Linear, place: str) -> Tensor:
        return self.inputs.get(place.partition(".")[2], x)

    def norm(self, x: Tensor, w: Norm, place: str) -> Tensor:
        # A norm over the width of all heads comes before the points q and k.
        over_all = w.weight is not None and len(w.weight) != x.shape[-1]
        return x if over_all else super().norm(x, w, place)

    def at(self, x: Tensor, point: Point) -> Tensor:
        return self.inputs[point.kind][:, :, None] if point.kind in self.inputs else x


def head_part(model: Model, inputs: Inputs, site: Site) -> NodeFunction:
    """From what a head's q, k and v read ("q", "k", "v") to what it adds to the residual stream.

    The bias of the output projection belongs to no head and is left out. The stream is that of one
    batch, with any axes before it.
    """
    branch, one, alone = _one_head(model, inputs, site)

    def part(streams: Mapping[str, Residual]) -> Residual:
        normed = {name: _normed(x, branch.pre) for name, x in streams.items()}
        x = normed["q"]
        return attention(_OneHead(normed), one, x, x, alone, site.point.layer, "", cuts=False)

    return part


def head_output(
    model: Model, inputs: Inputs, site: Site
) -> Callable[[Mapping[str, OfHead]], OfHead]:
    """From what stands at a head's points q, k and v to its z, at every position."""
    _, one, alone = _one_head(model, inputs, site)

    def output(given: Mapping[str, OfHead]) -> OfHead:
        q = given["q"]
        return attention(_Given(given), one, q, q, alone, site.point.layer, "", cuts=False)

    return output


def _one_head(model: Model, inputs: Inputs, site: Site) -> tuple[Branch, Attention, Context]:
    """A head's branch, its own part of the attention, and the masks and tables of that."""
    assert site.point.kind in HEAD_KINDS
    assert site.unit is not None
    branch = _branch(model, site.point.layer, Attention)
    whole = branch.body
    assert isinstance(whole, Attention)
    context = prepare(model.network.body, inputs.mask, whole.out.weight.dtype)
    one, scoring = whole.only([site.unit]), context.scorings[whole].only([site.unit])
    return branch, one, Context({one: scoring}, context.rotary)


def mlp_part(model: Model, layer: int) -> NodeFunction:
    """From what an MLP reads ("") to what it adds to the residual stream."""
    branch = _branch(model, layer, Mlp)
    body = branch.body
    assert isinstance(body, Mlp)

    def part(streams: Mapping[str, Residual]) -> Residual:
        return mlp(Plain(), body, _normed(streams[""], branch.pre), layer, "")

    return part


def logits_part(model: Model) -> Callable[[Float[Tensor, "*lead d_model"]], Tensor]:
    """From the last residual stream, at the positions that are read, to the logits there."""

    def part(x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead out"]:
        return head(Plain(), model.network.head, _normed(x, model.network.body.norm))

    return part


def _branch(model: Model, layer: int, kind: type) -> Branch:
    branches = model.network.body.blocks[layer].branches
    return next(branch for branch in branches if isinstance(branch.body, kind))


def _normed(x: Tensor, norm: Norm | None) -> Tensor:
    return x if norm is None else normalise(x, norm)
