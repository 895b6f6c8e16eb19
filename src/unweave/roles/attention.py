"""Where a head attends: by labelled position, by relation between tokens, and on random tokens.

Every figure is a ratio of sums over the positions that matter, each weighted by how much it
matters. The first position is left out unless it has a label: heads rest their attention there
when they have nothing to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.batch import Batch
from unweave.errors import UnweaveError
from unweave.model.model import Model, pad
from unweave.model.program import Inputs
from unweave.roles.shares import NOT_MEASURED, Ratio, share_of
from unweave.roles.writes import outputs_of

Weights = Float[Tensor, "batch position"]
Pattern = Float[Tensor, "batch query key"]
Relation = Bool[Tensor, "batch query key"]

# A relation that exists at less than this share of what matters is not measured there.
_LEAST = 0.25
_OFFSETS = 5  # distances that are kept
_ROWS, _HALF = 8, 24  # random prompts, and tokens in each before they repeat


@dataclass(frozen=True)
class AttentionFigures:
    """Where a head attends from the positions that matter.

    Args:
        to: Share of its weight by labelled position.
        relations: Share by relation: itself, previous, duplicate, induction, answer, distractor;
            NaN where the prompts hardly have such a pair.
        sink: Share of all weight on the first position.
        spread: Entropy of the pattern, divided by that of even attention.
        errors: Standard errors of the relations, of sink and of spread over prompts.
        offsets: Share by how many positions back the key is, the largest few.
    """

    to: Mapping[str, float]
    relations: Mapping[str, float]
    sink: float
    spread: float
    errors: Mapping[str, float] = field(default_factory=dict)
    offsets: Mapping[int, float] = field(default_factory=dict)


def relations_of(model: Model, batch: Batch) -> dict[str, Relation]:
    """Which keys stand in each relation to a query, for every prompt."""
    tokens = batch.clean.tokens
    assert tokens is not None
    found, outputs = token_relations(tokens), outputs_of(model, tokens)
    known = (outputs >= 0)[:, :, None]
    for name, ids in (("answer", batch.readout.answers), ("distractor", batch.readout.distractors)):
        is_one = ((outputs[:, :, None] == ids[:, None, :]) & known).any(-1)
        found[name] = is_one[:, None, :].expand(-1, tokens.shape[1], -1)
    return found


def token_relations(tokens: Int[Tensor, "batch position"]) -> dict[str, Relation]:
    """Relations that depend on tokens and their order alone.

    previous: the token before; duplicate: an earlier occurrence of the query's token; induction:
    the token after an earlier occurrence.
    """
    index = torch.arange(tokens.shape[1], device=tokens.device)
    offset = (index[:, None] - index[None, :]).expand(len(tokens), -1, -1)
    same = (tokens[:, :, None] == tokens[:, None, :]) & (offset > 0)
    after = torch.zeros_like(same)
    after[:, :, 1:] = same[:, :, :-1]
    return {
        "itself": offset == 0,
        "previous": offset == 1,
        "duplicate": same,
        "induction": after & (offset > 0),
    }


def attention_of(
    model: Model, pattern: Pattern, matters: Weights, batch: Batch
) -> AttentionFigures:
    """Where a head attends, over the positions that matter."""
    labelled = any(bool((where == 0).any()) for where in batch.positions.values())
    kept = pattern if labelled else _without_first(pattern)
    whole = _weighted(kept.sum(-1), matters)
    rows = torch.arange(len(pattern), device=pattern.device)
    to = {
        name: share_of(_weighted(kept[rows, :, where], matters), whole).value
        for name, where in batch.positions.items()
    }
    relations = {
        name: _related(kept, relation, matters)
        for name, relation in relations_of(model, batch).items()
    }
    sink = share_of(_weighted(pattern[:, :, 0], matters), _weighted(pattern.sum(-1), matters))
    spread = _spread(pattern, matters)
    return AttentionFigures(
        to,
        {name: share.value for name, share in relations.items()},
        sink.value,
        spread.value,
        {name: share.error for name, share in (*relations.items(), ("sink", sink))}
        | {"spread": spread.error},
        _offsets(kept, matters),
    )


def random_tokens(model: Model, seed: int = 0) -> Inputs:
    """Random tokens, said twice: the standard prompts for previous-token and induction heads."""
    table, tokenizer = model.network.body.embedding.tokens, model.tokenizer
    if table is None:
        raise UnweaveError(
            f"{model.name} does not read tokens: choose a decoder, roles are for those"
        )
    special = set(getattr(tokenizer, "all_special_ids", ()))
    usual = torch.tensor([i for i in range(len(table)) if i not in special])
    start = [tokenizer.bos_token_id] if model.prepend_bos and tokenizer is not None else []
    limit = model.token_limit or 2 * _HALF + len(start)
    half = min(_HALF, (limit - len(start)) // 2, len(usual))
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(_ROWS):
        said = usual[torch.randperm(len(usual), generator=generator)[:half]].tolist()
        rows.append([*start, *said, *said])
    return pad(rows, model.network.device)


def random_scores(pattern: Pattern, inputs: Inputs) -> dict[str, float]:
    """Previous-token, duplicate-token, induction scores and spread on random tokens that repeat.

    The share of its weight (beyond the first position) on the token before; on the same token's
    first occurrence; on the token after that. The last two, and the spread of the whole pattern,
    over the repetition only.
    """
    assert inputs.tokens is not None
    relations, length = token_relations(inputs.tokens), pattern.shape[1]
    again = torch.zeros(pattern.shape[:2], device=pattern.device)
    again[:, -(length // 2) :] = 1.0
    kept, every = _without_first(pattern), torch.ones_like(again)
    return {
        "previous": _related(kept, relations["previous"], every).value,
        "duplicate": _related(kept, relations["duplicate"], again).value,
        "induction": _related(kept, relations["induction"], again).value,
        "spread": _spread(pattern, again).value,
    }


def _related(kept: Pattern, relation: Relation, matters: Weights) -> Ratio:
    """The share of weight on related keys, where there are any."""
    exists = relation.any(-1).to(kept.dtype) * matters
    if float(exists.sum()) < _LEAST * float(matters.sum()):
        return NOT_MEASURED
    return share_of(_weighted((kept * relation).sum(-1), exists), _weighted(kept.sum(-1), exists))


def _offsets(kept: Pattern, matters: Weights) -> dict[int, float]:
    """The share of weight by the distance from query back to key; the largest few, in order."""
    weights = (kept * matters[:, :, None]).sum(0)
    shares = [float(weights.diagonal(-back).sum()) for back in range(len(weights))]
    whole = sum(shares)
    largest = sorted(range(len(shares)), key=lambda back: -shares[back])[:_OFFSETS]
    return {back: shares[back] / whole for back in largest if shares[back] > 0}


def _without_first(pattern: Pattern) -> Pattern:
    kept = pattern.clone()
    kept[:, :, 0] = 0.0
    return kept


def _spread(pattern: Pattern, matters: Weights) -> Ratio:
    """Entropy of each query's pattern over that of even attention to all that it sees."""
    entropy = torch.special.entr(pattern).sum(-1)
    seen = torch.arange(1, pattern.shape[1] + 1, device=pattern.device).to(pattern.dtype)
    most = seen.log().clamp(min=1e-9)
    wide = matters * (seen > 1)
    return share_of(_weighted(entropy / most, wide), wide.sum(-1))


def _weighted(x: Float[Tensor, "batch position"], matters: Weights) -> Float[Tensor, " batch"]:
    return (x * matters).sum(-1)
