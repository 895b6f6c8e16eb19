"""Interventions on nodes against transformers' own GPT-2 with hooks: no code in common."""

import math
from dataclasses import replace

import pytest
import torch
from oracles.hooked_roles import END, LENGTH, ROWS, THIRD, Oracle, Run, difference, part, tokens_of
from torch import Tensor

from unweave.ablation import ZERO
from unweave.roles import measure
from unweave.roles.interventions import swap_tokens
from unweave.sites import parse

TOKENS = {f"embed@{name}": f"embed@{at}" for name, at in (("end", END), ("third", THIRD))}
EVERY = torch.arange(ROWS)


def inputs_of(oracle: Oracle, node: str) -> dict[str, tuple[str, Tensor]]:
    """By input, its name among the hooks and the position at which it is looked at."""
    if node[0] == "m":
        return {"": (node, oracle.at(node))}
    at, to = oracle.at(node), oracle.to(node)
    return {"q": (f"{node}.q", at), "k": (f"{node}.k", to), "v": (f"{node}.v", to)}


def share(oracle: Oracle, name: str, at: Tensor, without: Run) -> float:
    """⟨T − T′, T − μ⟩ / ‖T − μ‖² of an input at one position of each prompt."""
    away = oracle.away(name)[EVERY, at]
    change = (part(oracle.clean, name) - part(without, name))[EVERY, at]
    return float((change * away).sum() / away.pow(2).sum())


@pytest.fixture(scope="module")
def gone_runs(oracle) -> dict[str, Run]:
    """A run without each node and without each labelled token."""
    runs = {node: oracle.without(node) for node in oracle.weights}
    return runs | {token: oracle.without(at) for token, at in TOKENS.items()}


@pytest.fixture(scope="module")
def shares(oracle, gone_runs) -> dict[tuple[str, str, str], float]:
    order = list(oracle.weights)
    found = {}
    for node in order:
        for branch, (name, at) in inputs_of(oracle, node).items():
            for source, run in gone_runs.items():
                if source.startswith("embed") or before(source, node):
                    found[node, branch, source] = share(oracle, name, at, run)
    return found


def before(source: str, node: str) -> bool:
    return parse(source).point.depth < parse(node).point.depth


def test_what_feeds_each_input_and_what_reads_each_node(oracle, found, shares):
    read: dict[str, dict[str, float]] = {node: {} for node in oracle.weights}
    for (node, branch, source), own in shares.items():
        assert found[node].feeds[branch][source] == pytest.approx(own, rel=1e-6, abs=1e-8)
        if not source.startswith("embed") and abs(own) >= 0.1:
            read[source][f"{node}.{branch}" if branch else node] = own
    for node, expected in read.items():
        assert found[node].reads == pytest.approx(expected)
        assert list(found[node].reads) == sorted(expected, key=lambda x: -abs(expected[x]))
    assert sum(map(len, read.values())) > 20


def output(oracle: Oracle, head: str, branch: str, other: Run) -> Tensor:
    """z of a head, by hand, with one of its inputs as it is in another run."""
    q, k, v = (
        part(other if name == branch else oracle.clean, f"{head}.{name}")
        for name in ("q", "k", "v")
    )
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    hidden = torch.ones(LENGTH, LENGTH).triu(1).bool()
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


def fall(oracle: Oracle, node: str, new: Tensor) -> tuple[float, float]:
    """How far an output falls, and the standard error by leaving each prompt out."""
    at = oracle.at(node)
    away = oracle.away(node)[EVERY, at]
    change = ((part(oracle.clean, node) - new)[EVERY, at] * away).sum(-1)
    sizes = away.pow(2).sum(-1)
    left = (change.sum() - change) / (sizes.sum() - sizes)
    error = ((left - left.mean()).pow(2).sum() * (ROWS - 1) / ROWS).sqrt()
    return float(change.sum() / sizes.sum()), float(error)


def named(own: dict[str, float]) -> list[str]:
    """The three largest nodes from a tenth on, the two largest tokens from a half on."""
    order = sorted(own, key=lambda source: -abs(own[source]))
    nodes = [x for x in order if "embed" not in x and abs(own[x]) >= 0.1]
    return nodes[:3] + [x for x in order if "embed" in x and own[x] >= 0.5][:2]


def test_each_feeder_is_taken_out_of_the_one_input_that_it_is_named_for(
    oracle, found, shares, gone_runs
):
    verdicts = []
    for node in oracle.weights:
        listed = []
        for branch in inputs_of(oracle, node):
            own = {s: x for (n, b, s), x in shares.items() if (n, b) == (node, branch)}
            whole = 1.0, 0.0
            if branch and named(own):
                whole = fall(oracle, node, output(oracle, node, branch, oracle.corrupted))
                assert found[node].moved[branch].output == pytest.approx(whole[0], abs=1e-7)
                assert found[node].moved[branch].error == pytest.approx(whole[1], rel=0.5, abs=1e-6)
            for source in named(own):
                run = gone_runs[source]
                new = output(oracle, node, branch, run) if branch else part(run, node)
                moved, _ = fall(oracle, node, new)
                error = found[node].fed[branch][source].error
                held = None
                if whole[0] >= 0.1 and whole[0] > 2 * found[node].moved[branch].error:
                    signed = moved if own[source] > 0 else -moved
                    held = signed >= max(0.05 * whole[0], 0.02) and abs(moved) > 2 * error
                listed.append((source, branch, own[source], moved, held))
                verdicts.append(held)
        feeders = [(f.source, f.input, f.share, f.falls, f.held) for f in found[node].feeders]
        assert [x[:2] for x in feeders] == [x[:2] for x in listed]
        assert [x[4] for x in feeders] == [x[4] for x in listed]
        assert [x[2:4] for x in feeders] == [pytest.approx(x[2:4], abs=1e-7) for x in listed]
    assert {True, False, None} == set(verdicts)


def test_how_heads_change_where_later_heads_attend(oracle, found, shares, gone_runs):
    same = (oracle.tokens[:, :, None] == oracle.tokens[:, None, :]).double()
    count = 0
    for head in oracle.heads:
        readers = [
            reader for reader in oracle.heads if abs(shares.get((reader, "q", head), 0.0)) >= 0.1
        ]
        assert set(found[head].shifts) == set(readers)
        attended = oracle.attended(head)
        attended = attended / attended.sum(-1, keepdim=True)
        likeness = torch.einsum("bkj,bj->bk", same, attended)
        for reader in readers:
            runs = oracle.clean, gone_runs[head]
            now, then = (oracle.pattern(run, reader)[EVERY, oracle.at(reader)] for run in runs)
            change = ((now - then) * likeness).sum(-1)
            own = found[head].shifts[reader]
            assert own.change.mean == pytest.approx(float(change.mean()), abs=1e-9)
            assert own.change.error == pytest.approx(float(change.std()) / ROWS**0.5, abs=1e-9)
            agree = (change.sign() == change.mean().sign()).double().mean()
            assert own.prompts == pytest.approx(float(agree))
            count += 1
    assert count > 3


def directions(oracle: Oracle, node: str) -> Tensor:
    """What the gradients span, less what is below a tenth of the largest singular value."""
    _, sizes, vectors = torch.linalg.svd(oracle.pulls[node].flatten(0, 1), full_matrices=False)
    return vectors[sizes > 0.1 * sizes[0]].T


def test_what_outputs_depend_on(oracle, found):
    for node, weights in oracle.weights.items():
        basis = directions(oracle, node)
        clean, corrupted = (part(run, node) @ basis for run in (oracle.clean, oracle.corrupted))
        within = whole = 0.0
        for place in range(LENGTH):
            own = torch.cat((clean[:, place], corrupted[:, place]))
            within += float(own.var(0).sum() * weights[:, place].sum())
            whole += float(own.pow(2).sum(-1).mean() * weights[:, place].sum())
        assert found[node].varies == pytest.approx(within / whole)
        reach = oracle.pulls[node].norm(dim=-1)
        by_token: dict[int, list[Tensor]] = {}
        for row in range(ROWS):
            for place in range(LENGTH):
                if reach[row, place] > 0.1 * reach[row].max():
                    own = by_token.setdefault(int(oracle.tokens[row, place]), [])
                    own.append(clean[row, place])
        often = [torch.stack(own) for own in by_token.values() if len(own) > 1]
        apart = sum(float((own - own.mean(0)).pow(2).sum()) for own in often)
        free = sum(len(own) - 1 for own in often)
        every = torch.cat(often)
        share_ = 1 - (apart / free) / float(every.var(0).sum())
        # Of a single token that is there twice nothing can be said.
        expected = share_ if len(often) > 1 else math.nan
        assert found[node].by_token == pytest.approx(expected, nan_ok=True)


def test_tokens_are_swapped_for_those_of_other_prompts(oracle):
    inputs, also = oracle.problem.batch.clean, oracle.problem.batch.readout.answers
    to = torch.full((ROWS,), THIRD)
    swap = swap_tokens(inputs, [to], also)
    assert swap is not None
    pool = {int(row[THIRD]) for row in oracle.tokens} | {
        int(a) for row, a in zip(oracle.tokens, also[:, 0], strict=True) if int(a) in row.tolist()
    }
    for old, new, own in zip(
        oracle.tokens.tolist(), tokens_of(swap.inputs).tolist(), also, strict=True
    ):
        for a, b in zip(old, new, strict=True):
            if a in (old[THIRD], int(own[0])):
                assert b in pool - set(old)
                assert {y for x, y in zip(old, new, strict=True) if x == a} == {b}
            else:
                assert a == b


def test_what_nodes_do_when_tokens_are_swapped(oracle, found):
    batch = oracle.problem.batch
    copying = [head for head in oracle.heads if abs(found[head].copying) >= 0.3]
    also = torch.cat((batch.readout.answers, batch.readout.distractors), 1)
    swap = swap_tokens(batch.clean, [oracle.to(head) for head in copying], also)
    assert swap is not None
    new = tokens_of(swap.inputs)
    seen = oracle.hooked.run(new)
    other = tokens_of(batch.corrupted)
    for node, weights in oracle.weights.items():
        basis, at = directions(oracle, node), oracle.at(node)
        now, then, mean = (part(x, node) @ basis for x in (oracle.clean, seen, oracle.corrupted))
        reach = oracle.pulls[node].norm(dim=-1)
        middle = torch.einsum("bpd,bp->d", now, reach) / reach.sum()
        sums = {"swap_changes": [0.0, 0.0], "same_token": [0.0, 0.0]}

        def add(name: str, change: Tensor, size: Tensor, weight: Tensor, sums=sums) -> None:
            sums[name][0] += float(change.pow(2).sum() * weight)
            sums[name][1] += float(size.pow(2).sum() * weight)

        for row in range(ROWS):
            for place in range(LENGTH):
                here, weight = now[row, place], weights[row, place]
                earlier = slice(0, place + 1)
                if (new[row, earlier] != oracle.tokens[row, earlier]).any():
                    own = here - mean[row, place]  # the ablation: the paired prompt's
                    add("swap_changes", then[row, place] - here, own, weight)
                for tokens, state in ((new, then), (other, mean)):
                    differs = tokens[row, earlier] != oracle.tokens[row, earlier]
                    if differs.any() and not differs[-1]:
                        add(
                            "same_token", state[row, place] - here, here - middle, reach[row, place]
                        )
        for name, (change, size) in sums.items():
            assert getattr(found[node], name) == pytest.approx(change / size)
        write = oracle.write(node, part(seen, node) - part(oracle.clean, node))[EVERY, at]
        logits = oracle.hooked.unembed(write)

        def favours(places: list[int | None], logits=logits) -> float:
            votes = []
            for row, place in enumerate(places):
                if place is None or new[row, place] == oracle.tokens[row, place]:
                    continue
                now_, old = new[row, place], oracle.tokens[row, place]
                votes.append(float(logits[row, now_] > logits[row, old]))
            return sum(votes) / len(votes) if votes else math.nan

        answer = [
            said.index(a) if (a := int(batch.readout.answers[row, 0])) in said else None
            for row, said in enumerate(oracle.tokens.tolist())
        ]
        followed = found[node].followed
        assert followed.answer == pytest.approx(favours(answer))
        if node[0] == "a":
            to = oracle.to(node).tolist()
            assert followed.token == pytest.approx(favours(to), nan_ok=True)
            kept = oracle.pattern(seen, node)[EVERY, at].clone()
            kept[:, 0] = 0
            moved = [row for row in range(ROWS) if new[row, to[row]] != oracle.tokens[row, to[row]]]
            stays = [float(int(kept[row].argmax()) == to[row]) for row in moved]
            expected = sum(stays) / len(stays) if stays else math.nan
            assert followed.stays == pytest.approx(expected, nan_ok=True)


def test_what_the_output_on_the_corrupted_prompt_does(oracle):
    problem = replace(oracle.problem, ablation=ZERO)
    found = measure(problem, problem.nodes, budget=1000.0)[0]
    whole = oracle.metric(oracle.clean)
    for node in oracle.weights:
        name = f"z{node[1:].split('.')[0]}" if node[0] == "a" else node

        def zero(x: Tensor, node=node) -> Tensor:
            if node[0] == "m":
                return torch.zeros_like(x)
            x[:, :, int(node.split(".h")[1])] = 0
            return x

        effect = whole - oracle.metric(oracle.hooked.run(oracle.tokens, {name: zero}))
        other = whole - difference(problem.batch, oracle.without(node).logits)
        assert found[node].effect.mean == pytest.approx(float(effect.mean()), abs=1e-9)
        share_ = abs(float(other.mean() / effect.mean()))
        assert found[node].resampled == pytest.approx(share_, rel=1e-5)
