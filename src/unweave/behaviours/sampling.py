"""Which prompts belong to which part of a task, and in which order they are drawn.

Four disjoint parts: a circuit is searched on "discover" prompts, the search checks itself on
"check" prompts, "evaluate" prompts are for the reported figures alone, and mean ablations come from
"reference" prompts. Some templates are new to the search: only evaluation (and the means that it
needs) sees them, so that held-out prompts are also held-out sentences.
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from random import Random
from typing import Literal

from unweave.behaviours.encoding import group_of
from unweave.behaviours.prompt import Prompt
from unweave.behaviours.words import Words

Part = Literal["discover", "check", "evaluate", "reference"]
Templates = Literal["seen", "new", "all"]
Write = Callable[[Words, int, Random], list[Prompt]]
Sampler = Callable[[Words, int, Part], Iterator[Prompt]]

PARTS: tuple[Part, ...] = ("discover", "check", "evaluate", "reference")
# By the hash of a prompt: two fifths of all possible prompts to search, a fifth for the others.
_FIFTHS: tuple[Part, ...] = ("discover", "evaluate", "discover", "check", "reference")
_ROUND = 64  # prompts that a task is asked for at a time
_POOL = 256  # prompts among which templates are balanced
_PATIENCE = 20  # rounds without a new prompt, after which there are none left
_SETTLED = 3  # rounds without a new group, after which all are known
_MOST_ROUNDS = 40  # a group too rare to be filled by then stays smaller


def part_of(prompt: Prompt) -> Part:
    """The part that a generated prompt belongs to."""
    return _FIFTHS[key_hash(prompt) % len(_FIFTHS)]


def key_hash(prompt: Prompt) -> int:
    """A number that depends on the prompt's key alone, in every process."""
    return _hash(prompt.key or prompt.clean)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def generated(name: str, write: Write) -> Sampler:
    """Prompts of one part, round by round, until the task writes no new ones.

    The part of a prompt is a hash of its key, so that parts are disjoint for all seeds.
    """

    def sample(words: Words, seed: int, part: Part) -> Iterator[Prompt]:
        rng, seen, idle = Random(f"{name} {seed} {part}"), set(), 0
        while idle < _PATIENCE:
            idle += 1
            for prompt in write(words, _ROUND, rng):
                if part_of(prompt) == part and prompt.clean not in seen:
                    seen.add(prompt.clean)
                    idle = 0
                    yield prompt

    return sample


def kept_templates(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """Of a list's templates, those that the search never sees: one in four, by their hashes.

    None of fewer than three; none where a part of the others, or the evaluation or the reference
    of one that is kept, would have no prompt.
    """
    keys: dict[str, set[str]] = {}
    for prompt in prompts:
        if prompt.template:
            keys.setdefault(prompt.template, set()).add(prompt.key)
    if len(keys) < 3:
        return ()
    new = sorted(keys, key=_hash)[: max(1, len(keys) // 4)]
    own = {key for name in new for key in keys[name]}
    seen = {prompt.key for prompt in prompts} - own
    enough = len(seen) >= len(PARTS) and all(len(keys[name]) >= 2 for name in new)
    return tuple(sorted(new)) if enough else ()


def listed(
    prompts: Sequence[Prompt], new: Sequence[str] = (), held_out: Sequence[Prompt] = ()
) -> tuple[Sampler, dict[Part, int]]:
    """A fixed list of prompts in four parts, and how many prompts each part has.

    Prompts with one key count once. Of k keys, in the order of their hashes, reference gets k // 5
    (at least 1), discovery half of the others, and check and evaluation share what is left. Of the
    keys of a new template, evaluation gets all but the reference's. Where a list brings held-out
    prompts of its own, evaluation gets those alone.
    """
    template = {prompt.key: prompt.template for prompt in prompts if prompt.template in new}
    others: tuple[Part, ...] = ("discover", "check", *(() if held_out else ("evaluate",)))
    parts = _parts([p for p in prompts if p.key not in template], others)
    for name in new:
        parts |= _parts([p for p in prompts if template.get(p.key) == name], ("evaluate",))
    own: dict[Part, list[Prompt]] = {part: [] for part in PARTS}
    for prompt in prompts:
        own[parts[prompt.key]].append(prompt)
    if held_out:
        own["evaluate"] = list(held_out)

    def sample(words: Words, seed: int, part: Part) -> Iterator[Prompt]:
        chosen = list(own[part])
        Random(f"{seed} {part}").shuffle(chosen)
        return iter(chosen)

    return sample, {part: len(some) for part, some in own.items()}


def _parts(prompts: Sequence[Prompt], others: Sequence[Part]) -> dict[str, Part]:
    """The part of each key, in the order of their hashes: reference first, then each of the others
    takes half of what is left, and the last the rest."""
    keys = sorted({prompt.key: key_hash(prompt) for prompt in prompts}.items(), key=lambda k: k[1])
    left = [key for key, _ in keys]
    found: dict[str, Part] = {}
    for part in ("reference", *others):
        count = max(1, len(left) // 5) if part == "reference" else len(left) // 2
        count = len(left) if part == others[-1] else count
        found |= dict.fromkeys(left[:count], part)
        left = left[count:]
    return found


def balanced(drawn: Iterator[Prompt]) -> Iterator[Prompt]:
    """One prompt of each kind in turn, so that small sets do not differ in their kinds.

    A kind is a template with its labelled words in one order (in IOI: who is named first).
    """
    while pool := list(islice(drawn, _POOL)):
        kinds: dict[tuple[str, ...], list[Prompt]] = {}
        for prompt in pool:
            order = sorted(prompt.spans, key=lambda label: prompt.spans[label])
            kinds.setdefault((prompt.template, *order), []).append(prompt)
        for turn in range(max(map(len, kinds.values()))):
            yield from (prompts[turn] for prompts in kinds.values() if turn < len(prompts))


def every_group(words: Words, drawn: Iterator[Prompt], per_group: int) -> list[Prompt]:
    """The first `per_group` prompts of every group (template and token lengths)."""
    groups: dict[int, list[Prompt]] = {}
    settled = 0
    for _ in range(_MOST_ROUNDS):
        known, chunk = len(groups), list(islice(drawn, _ROUND))
        for prompt in chunk:
            clean, corrupted = (
                words.model.encode(text)[0] for text in (prompt.clean, prompt.corrupted)
            )
            group = groups.setdefault(group_of(prompt.template, clean, corrupted), [])
            if len(group) < per_group:
                group.append(prompt)
        full = all(len(group) == per_group for group in groups.values())
        settled = settled + 1 if full and len(groups) == known else 0
        if settled == _SETTLED or not chunk:
            break
    return [prompt for group in groups.values() for prompt in group]
