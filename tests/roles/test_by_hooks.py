"""Every measurement against transformers' own GPT-2 with hooks: no code in common."""

import math

import pytest
import torch
from oracles.hooked_roles import END, LABELS, LENGTH, ROWS, THIRD, difference, part, tokens_of
from torch import Tensor

from unweave.roles.attention import random_tokens

EVERY = torch.arange(ROWS)


def close(value: float):
    return pytest.approx(float(value), rel=1e-6, abs=1e-9)


def test_positions_and_tokens_at_which_nodes_matter(oracle, found):
    for node, weights in oracle.weights.items():
        end, third = float(weights[:, END].sum()), float(weights[:, THIRD].sum())
        whole = float(weights.sum())
        assert found[node].matters["end"] == close(end / whole)
        assert found[node].matters["third"] == close(third / whole)
        assert found[node].matters["elsewhere"] == pytest.approx(1 - (end + third) / whole)
        own: dict[int, float] = {}
        for row in range(ROWS):
            for place in range(LENGTH):
                token = int(oracle.tokens[row, place])
                own[token] = own.get(token, 0.0) + float(weights[row, place]) / whole
        most = dict(sorted(own.items(), key=lambda item: -item[1])[:3])
        assert found[node].tokens == pytest.approx({f"token {t}": x for t, x in most.items()})


def test_where_heads_attend(oracle, found):
    for head in oracle.heads:
        attention, weights = found[head].attention, oracle.weights[head]
        pattern = oracle.pattern(oracle.clean, head)
        kept = pattern.clone()
        kept[:, :, 0] = 0
        shares = torch.einsum("bqk,bq->bk", kept, weights)
        for label, place in LABELS.items():
            assert attention.to[label] == close(shares[:, place].sum() / shares.sum())
        assert attention.sink == close((pattern[:, :, 0] * weights).sum() / weights.sum())
        back: dict[int, float] = {}
        for query in range(LENGTH):
            for key in range(1, query + 1):
                amount = float((kept[:, query, key] * weights[:, query]).sum() / shares.sum())
                back[query - key] = back.get(query - key, 0.0) + amount
        for offset, share in attention.offsets.items():
            assert share == close(back[offset])
        assert len(attention.offsets) == 5 or head.startswith("a3")
        assert attention.spread == close(spread(pattern, weights))


def spread(pattern: Tensor, weights: Tensor) -> float:
    part = whole = 0.0
    for row in range(len(pattern)):
        for query in range(1, pattern.shape[1]):
            own = [float(x) for x in pattern[row, query, : query + 1]]
            entropy = -sum(x * math.log(x) for x in own if x > 0)
            part += float(weights[row, query]) * entropy / math.log(query + 1)
            whole += float(weights[row, query])
    return part / whole


def related(kind: str, tokens: list[int], query: int, key: int) -> bool:
    if kind == "itself":
        return key == query
    if kind == "previous":
        return key == query - 1
    if kind == "duplicate":
        return key < query and tokens[key] == tokens[query]
    return 0 < key < query and tokens[key - 1] == tokens[query]


def score(kind: str, pattern: Tensor, tokens: Tensor, weights: Tensor) -> float:
    """The share of weight beyond the first key, over queries that have such a key."""
    part = whole = there = 0.0
    for row, said in enumerate(tokens.tolist()):
        for query in range(len(said)):
            keys = [key for key in range(query + 1) if related(kind, said, query, key)]
            if not keys or not float(weights[row, query]):
                continue
            there += float(weights[row, query])
            part += float(weights[row, query] * sum(pattern[row, query, k] for k in keys if k))
            whole += float(weights[row, query] * pattern[row, query, 1:].sum())
    return part / whole if there >= 0.25 * float(weights.sum()) else math.nan


def test_relations_in_the_prompts_and_on_random_tokens(oracle, found):
    random = tokens_of(random_tokens(oracle.problem.model, 0))
    seen = oracle.hooked.run(random)
    every = torch.ones(random.shape)
    again = every.clone()
    again[:, : random.shape[1] // 2] = 0
    for head in oracle.heads[::3]:
        pattern = oracle.pattern(oracle.clean, head)
        for kind in ("itself", "previous", "duplicate", "induction"):
            own = score(kind, pattern, oracle.tokens, oracle.weights[head])
            assert found[head].attention.relations[kind] == pytest.approx(own, nan_ok=True)
        for name, key in (("answer", "answers"), ("distractor", "distractors")):
            ids = getattr(oracle.problem.batch.readout, key)
            has = (oracle.tokens == ids).double()
            weights = oracle.weights[head] * (has.sum(-1, keepdim=True) > 0)
            kept = pattern.clone()
            kept[:, :, 0] = 0
            on = torch.einsum("bqk,bk,bq->", kept, has, weights)
            share = float(on / torch.einsum("bqk,bq->", kept, weights))
            assert found[head].attention.relations[name] == pytest.approx(share)
        pattern = oracle.pattern(seen, head)
        expected = {
            "previous": score("previous", pattern, random, every),
            "duplicate": score("duplicate", pattern, random, again),
            "induction": score("induction", pattern, random, again),
            "spread": spread(pattern, again),
        }
        assert found[head].random == pytest.approx(expected)


def rank(logits: Tensor, own: int, outputs: list[int]) -> float:
    mine, tie = float(logits[own]), 1e-5 * float(logits[outputs].abs().max())
    others = [float(logits[i]) - mine for i in outputs if i != own]
    return sum((x < -tie) - (x > tie) for x in others) / len(others)


def test_copying_in_the_prompts_and_over_the_vocabulary(oracle, found):
    readout = oracle.problem.batch.readout
    listed = (oracle.tokens, readout.answers, readout.distractors)
    outputs = sorted({token for x in listed for token in x.flatten().tolist()})
    random = tokens_of(random_tokens(oracle.problem.model, 0))
    seen = oracle.hooked.run(random)
    for head in oracle.heads[::2]:
        weights = oracle.attended(head)
        part_, whole = 0.0, 0.0
        values = part(oracle.clean, f"{head}.v")
        middle = values[weights > 0].mean(0)
        logits = oracle.hooked.unembed(oracle.write(head, values - middle))
        for row in range(ROWS):
            for key in range(1, LENGTH):
                own = int(oracle.tokens[row, key])
                part_ += float(weights[row, key]) * rank(logits[row, key], own, outputs)
                whole += float(weights[row, key])
        assert found[head].copying == pytest.approx(part_ / whole)
        values = part(seen, f"{head}.v")[:, 1:]
        logits = oracle.hooked.unembed(oracle.write(head, values - values.mean((0, 1))))
        every = sorted(set(random.flatten().tolist()))
        assert len(every) > 50  # nearly all of the 61 tokens
        ranks = [
            rank(logits[row, key], int(random[row, key + 1]), every)
            for row in range(len(random))
            for key in range(values.shape[1])
        ]
        assert found[head].copying_random == pytest.approx(sum(ranks) / len(ranks))


def test_effects_direct_and_through_later_nodes(oracle, found):
    whole = oracle.metric(oracle.clean)
    empty = oracle.metric(oracle.without(*oracle.weights))
    scale = float((whole - empty).mean().abs())
    final = oracle.clean.final[:, END]
    answers = oracle.problem.batch.readout.answers[:, 0].tolist()
    for node in oracle.weights:
        lost = whole - oracle.metric(oracle.without(node))

        def written(change: Tensor) -> Tensor:
            return whole - difference(oracle.problem.batch, oracle.hooked.logits(final - change))

        write = oracle.write(node, part(oracle.clean, node))[:, END]
        direct = written(oracle.write(node, oracle.away(node))[:, END])
        assert found[node].effect.mean == close(lost.mean())
        assert found[node].effect.error == close(lost.std() / ROWS**0.5)
        assert found[node].effect_share == close(lost.abs().mean() / scale)
        assert found[node].direct.mean == close(direct.mean())
        assert found[node].direct_size == close(direct.abs().mean() / scale)
        assert found[node].direct_share == close((direct * lost).sum() / lost.pow(2).sum())
        other = [
            next((j % ROWS for j in range(i + 1, i + ROWS) if answers[j % ROWS] != answers[i]), i)
            for i in range(ROWS)
        ]
        share = float(written(write - write[other]).sum() / direct.sum())
        assert found[node].direct_other == pytest.approx(share, rel=1e-5)


def test_what_nodes_promote(oracle, found):
    readout = oracle.problem.batch.readout
    listed = (oracle.tokens, readout.answers, readout.distractors)
    outputs = sorted({token for x in listed for token in x.flatten().tolist()})
    for node in oracle.weights:
        write = oracle.write(node, oracle.away(node))[EVERY, oracle.at(node)]
        logits = oracle.hooked.unembed(write).mean(0)
        best = sorted(outputs, key=lambda token: -float(logits[token]))[:3]
        assert found[node].favours == tuple(f"token {i}" for i in best)
