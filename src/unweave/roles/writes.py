"""What a node writes: copying of the attended token, direct effect, tokens that it favours.

A write is read straight off by the unembedding (final norm's gain, then the output matrix), which
leaves out everything that later nodes make of it.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.ablation import position_mask
from unweave.batch import Batch
from unweave.model.algebra import Plain, normalise
from unweave.model.model import Model
from unweave.model.program import head
from unweave.model.weights import Linear
from unweave.roles.runs import Seen
from unweave.roles.shares import NOT_MEASURED, Ratio, share_of
from unweave.scores.problem import Problem
from unweave.sites import HEAD_KINDS, Point, Site

Rows = Float[Tensor, "n d_model"]


def node_write(
    model: Model, node: Site, x: Float[Tensor, "batch position *unit"]
) -> Float[Tensor, "batch position d_model"]:
    """What an activation at a node's point (less its ablation, say) adds to the residual stream."""
    if node.point.kind not in HEAD_KINDS:
        return x
    assert node.unit is not None
    return head_write(model, node, x[..., node.unit, :])


def head_write(
    model: Model, node: Site, z: Float[Tensor, "*lead d_head"]
) -> Float[Tensor, "*lead d_model"]:
    """z W_O of one head, or the same of a value: what a key adds when it is attended alone."""
    attention = model.network.body.blocks[node.point.layer].attention
    assert node.unit is not None
    weight = attention.out.matrix.unflatten(1, (attention.heads, -1))[:, node.unit]
    return z @ weight.T


def outputs_of(model: Model, tokens: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """The logit of each token: its own id, or the class of that name; −1 where there is none."""
    labels = model.network.head.labels
    if not labels:
        return tokens
    ids = {int(t): model.decode(int(t)).strip() for t in tokens.unique() if t >= 0}
    known = {t: labels.index(text) if text in labels else -1 for t, text in ids.items()}
    return torch.tensor(
        [known.get(int(t), -1) for t in tokens.flatten()], device=tokens.device
    ).reshape(tokens.shape)


def unembed(model: Model, writes: Rows, outputs: Int[Tensor, " out"]) -> Float[Tensor, "n out"]:
    """Logits that writes add, up to the positive scale of the final norm."""
    norm, steps = model.network.body.norm, model.network.head.steps
    if norm is not None:
        if norm.kind == "layer":
            writes = writes - writes.mean(-1, keepdim=True)
        writes = writes if norm.gain is None else writes * norm.gain
    maps = [step for step in steps if isinstance(step, Linear)]
    for step in maps[:-1]:
        writes = writes @ step.matrix.T
    return writes @ maps[-1].matrix[outputs].T


def candidates(model: Model, batch: Batch) -> Int[Tensor, " out"]:
    """Logits that are compared: of all tokens in the prompts, of answers and distractors."""
    assert batch.clean.tokens is not None
    said = outputs_of(model, batch.clean.tokens[batch.clean.mask])
    every = torch.cat((said, batch.readout.answers.flatten(), batch.readout.distractors.flatten()))
    return every[every >= 0].unique()


def rank_score(
    logits: Float[Tensor, "n out"], outputs: Int[Tensor, " out"], own: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Where each row's own output ranks among all: 1 the highest, −1 the lowest, 0 in the middle.

    `2·P(own > other) − 1` over the other outputs, ties counted half.
    """
    hit = outputs == own[:, None]
    mine = (logits * hit).sum(-1, keepdim=True)
    # What differs by rounding only is a tie: a write that misses the unembedding favours none.
    noise = 1e-5 * logits.abs().amax(-1, keepdim=True)
    above = (mine > logits + noise) & ~hit
    below = (mine < logits - noise) & ~hit
    return (above.sum(-1) - below.sum(-1)).to(logits.dtype) / max(1, len(outputs) - 1)


def copying(
    model: Model,
    node: Site,
    values: Float[Tensor, "batch position d_head"],
    tokens: Int[Tensor, "batch position"],
    weights: Float[Tensor, "batch position"],
    outputs: Int[Tensor, " out"],
) -> Ratio:
    """Whether a head's write raises (1) or lowers (−1) the token that it attends to.

    The value of each key, less the mean value, passes the head's output matrix and the
    unembedding; the score is the rank of the key's own token among `outputs` (`rank_score`),
    averaged over keys by their weight. 0: the write says nothing about the token.

    Args:
        weights: Attention that each key gets, from the positions that matter; 0 leaves it out.
    """
    own = outputs_of(model, tokens)
    known = (weights > 0) & torch.isin(own, outputs)
    if not bool(known.any()):
        return NOT_MEASURED
    away = values[known] - values[weights > 0].mean(0)
    if float(away.abs().max()) <= 1e-6 * float(values.abs().max()):
        return Ratio(0.0, 0.0)
    scores = torch.zeros_like(weights)
    scores[known] = rank_score(
        unembed(model, head_write(model, node, away), outputs), outputs, own[known]
    ).to(scores.dtype)
    return share_of((scores * weights).sum(-1), (weights * known).sum(-1))


def direct_effect(
    model: Model,
    batch: Batch,
    final: Float[Tensor, "batch d_model"],
    write: Float[Tensor, "batch d_model"],
) -> Float[Tensor, " batch"]:
    """m(T) − m(T − write): the metric without a write that only the unembedding misses.

    Args:
        final: The residual stream at the position that is read, after the last block.
        write: What the node adds there beyond its ablation.
    """

    def metric(x: Float[Tensor, "batch d_model"]) -> Float[Tensor, " batch"]:
        norm = model.network.body.norm
        x = x if norm is None else normalise(x, norm)
        return batch.readout.measure(head(Plain(), model.network.head, x[:, None])[:, 0])

    with torch.no_grad():
        return metric(final) - metric(final - write)


class Writes:
    """What nodes write on the clean prompts, and what it does where the metric is read.

    Args:
        clean: A run of the problem's prompts, watched at the nodes' points and at the end.
    """

    def __init__(self, problem: Problem, clean: Seen) -> None:
        self.problem, self.model, self.at = problem, problem.model, clean.at
        self.read = problem.batch.readout.read
        self.rows = torch.arange(len(self.read), device=self.read.device)

    def of(self, node: Site) -> Float[Tensor, "batch position d_model"]:
        """What a node adds to the residual stream beyond its ablation."""
        total = self.at[node.point]
        return node_write(self.model, node, total - self.problem.ablation.at(node.point, total))

    def direct(self, node: Site) -> Float[Tensor, " batch"]:
        """The effect of what it writes where the metric is read."""
        return self._lost(node, self.of(node)[self.rows, self.read])

    def direct_other(self, node: Site) -> float:
        """Of its direct effect, what is lost with its write on a prompt with another answer."""
        other = partners(self.problem.batch.readout.answers)
        write = node_write(self.model, node, self.at[node.point])[self.rows, self.read]
        lost, known = self._lost(node, write - write[other]), other >= 0
        return share_of(lost[known], self.direct(node)[known]).value

    def _lost(self, node: Site, write: Float[Tensor, "batch d_model"]) -> Float[Tensor, " batch"]:
        """What the metric loses without a write; a node has none at positions that are not its."""
        batch = self.problem.batch
        final = self.at[final_point(self.model)][self.rows, self.read]
        lost = direct_effect(self.model, batch, final, write)
        where = position_mask(node, batch.clean, batch.positions)
        return lost if where is None else torch.where(where[self.rows, self.read], lost, 0)


def partners(answers: Int[Tensor, "batch n"]) -> Int[Tensor, " batch"]:
    """For each prompt, the next one with another answer; −1 where there is none."""
    rows, found = len(answers), []
    for b in range(rows):
        own = set(answers[b].tolist())
        later = ((b + i) % rows for i in range(1, rows))
        found.append(next((i for i in later if not own & set(answers[i].tolist())), -1))
    return torch.tensor(found, device=answers.device)


def favoured(
    model: Model, writes: Rows, outputs: Int[Tensor, " out"], most: int = 3
) -> Sequence[str]:
    """The outputs that writes raise most, on average beyond the mean over outputs."""
    logits = unembed(model, writes, outputs).mean(0)
    labels, best = model.network.head.labels, outputs[logits.argsort(descending=True)[:most]]
    if float(logits.abs().max()) == 0.0:
        return ()
    return tuple(labels[i] if labels else token_text(model, i) for i in best.tolist())


def token_text(model: Model, token: int) -> str:
    return f"token {token}" if model.tokenizer is None else model.decode(token)


def final_point(model: Model) -> Point:
    return Point("resid", len(model.network.body.blocks))
