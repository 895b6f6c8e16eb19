"""`Task`: a behaviour as prompts with a metric, and the registry of tasks.

A task is one decorated function that writes prompts:

    @task("capitals", metric=LOGIT_DIFFERENCE)
    def capitals(words: Words, n: int, rng: Random) -> list[Prompt]:
        '''A country's capital follows its name.'''
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from random import Random
from typing import Literal

from unweave.batch import Batch
from unweave.behaviours.accuracy import ROWS, clean_metric
from unweave.behaviours.encoding import group_of, to_batch
from unweave.behaviours.prompt import Prompt
from unweave.behaviours.words import Words
from unweave.errors import UnweaveError
from unweave.metrics import Metric
from unweave.model.model import Model
from unweave.model.sources import DEFAULT
from unweave.registry import Registry
from unweave.sites import Site, parse

Part = Literal["discover", "evaluate", "reference"]
Make = Callable[[Words, int, Random], list[Prompt]]
Sampler = Callable[[Words, int, Part], Iterator[Prompt]]

# A fifth of all possible prompts is for reference, the rest for discovery and evaluation alike.
_PARTS: tuple[Part, ...] = ("discover", "evaluate", "discover", "evaluate", "reference")
_ROUND = 64  # prompts that a task is asked for at a time
_POOL = 256  # prompts among which templates are balanced
_PATIENCE = 20  # rounds without a new prompt, after which there are none left
_SETTLED = 3  # rounds without a new group, after which all are known
_MOST_ROUNDS = 40  # a group too rare to be filled by then stays smaller


@dataclass(frozen=True)
class KnownCircuit:
    """A published circuit.

    Args:
        nodes: Its heads.
        reference: Where it was published.
        added: Heads that the authors add for a circuit that does better ("augmented").
        aliases: Other names of the model.
        ablations: By ablation, where it matters: a node whose output never changes is needed when
            it is ablated to zero, and not missed when it is ablated to its mean.
        edges: By ablation: (upstream, downstream), the latter a head's input such as a1.h0.k,
            an MLP or the logits.
    """

    nodes: tuple[Site, ...]
    reference: str
    added: tuple[Site, ...] = ()
    aliases: tuple[str, ...] = ()
    ablations: Mapping[str, tuple[Site, ...]] = field(default_factory=dict)
    edges: Mapping[str, tuple[tuple[Site, Site], ...]] = field(default_factory=dict)

    def under(self, ablation: str) -> tuple[Site, ...]:
        """Its nodes under an ablation."""
        return self.ablations.get(ablation, self.nodes)

    @property
    def augmented(self) -> tuple[Site, ...]:
        return self.nodes + self.added


def heads(text: str) -> tuple[Site, ...]:
    """Reads "9.9 10.0 …" (layer.head), as papers print circuits."""
    return tuple(parse(name) for name in text.split())


@dataclass(frozen=True, eq=False)
class Task:
    """A behaviour to explain.

    Args:
        name: What it is called on the command line and in results.
        summary: One line about it.
        metric: Read from the logits at `end`.
        sampler: Prompts of one part, in an order that the seed decides.
        relative: Positions counted from a named one, such as "S1+1".
        known: Published circuits by the model's name.
        n_discover, n_evaluate: How many prompts to use unless told otherwise.
        per_group: How many reference prompts a group gets unless told otherwise; more where there
            are few groups.
        only_correct: Whether to keep only the prompts that the model answers correctly.
        first_token: Whether the first token of a longer answer stands for it.
        model: The bundled classifier whose classes are the answers; None for a task of any
            language model.
    """

    name: str
    summary: str
    metric: Metric
    sampler: Sampler
    relative: tuple[str, ...] = ()
    known: Mapping[str, KnownCircuit] = field(default_factory=dict)
    n_discover: int = 32
    n_evaluate: int = 100
    per_group: int = 8
    only_correct: bool = False
    first_token: bool = False
    model: str | None = None

    @property
    def own_model(self) -> str:
        """The model to use unless told otherwise: a task that was made for one has its name."""
        return self.model or (self.name if self.name in self.known else DEFAULT)

    def batch(
        self,
        model: Model,
        n: int | None = None,
        seed: int = 0,
        part: Part = "discover",
        *,
        per_group: int | None = None,
        only_correct: bool | None = None,
    ) -> Batch:
        """Prompts of one part as tensors for a model; see `prompts`."""
        words = Words(model)
        return self._encode(words, self._draw(words, n, seed, part, per_group, only_correct))

    def prompts(
        self,
        model: Model,
        n: int | None = None,
        seed: int = 0,
        part: Part = "discover",
        *,
        per_group: int | None = None,
        only_correct: bool | None = None,
    ) -> list[Prompt]:
        """Draws prompts: the same for the same seed, and no prompt in two parts.

        The parts are "discover", "evaluate" and "reference", the last for means over corrupted
        prompts: every group (template, token length) gets `per_group` of them, and `n` only caps
        their number. A smaller `n` gives the first prompts of a larger one.

        There are fewer than `n` where the task has no more.

        Raises:
            UnweaveError: When there are none, or the model answers too few correctly.
        """
        return self._draw(Words(model), n, seed, part, per_group, only_correct)

    def encode(self, model: Model, prompts: list[Prompt]) -> Batch:
        """Prompts of this task as tensors for a model."""
        return self._encode(Words(model), prompts)

    def known_circuit(self, model: str) -> KnownCircuit | None:
        """The published circuit of a model, by its name, hub address or alias."""
        short = model.rpartition("/")[2].lower()
        for name, circuit in self.known.items():
            if short in (name, *circuit.aliases):
                return circuit
        return None

    def _encode(self, words: Words, prompts: list[Prompt]) -> Batch:
        return to_batch(words, prompts, self.metric, self.relative, self.first_token)

    def _draw(
        self,
        words: Words,
        n: int | None,
        seed: int,
        part: Part,
        per_group: int | None,
        only_correct: bool | None,
    ) -> list[Prompt]:
        if self.model is not None and not words.model.network.head.labels:
            raise UnweaveError(
                f"task {self.name} asks for classes and {words.model.name} has none: use "
                f"{self.model} (--model {self.model})"
            )
        if (n is not None and n < 1) or (per_group is not None and per_group < 1):
            raise UnweaveError(f"{n if n is not None else per_group} prompts: expected 1 or more")
        drawn = self.sampler(words, seed, part)
        if part == "reference":
            chosen = self._every_group(words, drawn, per_group or self.per_group)[:n]
        else:
            n = n or (self.n_discover if part == "discover" else self.n_evaluate)
            drawn = _balanced(drawn)
            strict = self.only_correct if only_correct is None else only_correct
            chosen = self._correct(words, drawn, n) if strict else list(islice(drawn, n))
        if not chosen:
            raise UnweaveError(f"task {self.name} has no prompts for part {part!r}: add some")
        return chosen

    def _every_group(self, words: Words, drawn: Iterator[Prompt], per_group: int) -> list[Prompt]:
        groups, settled = {}, 0
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

    def _correct(self, words: Words, drawn: Iterator[Prompt], n: int) -> list[Prompt]:
        kept, seen = [], 0
        while len(kept) < n and (chunk := list(islice(drawn, ROWS))):
            seen += len(chunk)
            right = (clean_metric(words.model, self._encode(words, chunk)) > 0).tolist()
            kept += [prompt for prompt, good in zip(chunk, right, strict=True) if good]
            if seen >= 64 and len(kept) < seen / 10:
                raise UnweaveError(
                    f"{words.model.name} answers {len(kept)} of {seen} prompts of {self.name} "
                    "correctly: it cannot do the task; choose another model, or try bos=True"
                )
        return kept[:n]


tasks: Registry[Task] = Registry("task", "unweave.behaviours")
# Tasks that belong to one model that code builds, whose circuit is known by construction.
synthetic_tasks: Registry[Task] = Registry("task", "unweave.behaviours.synthetic")


def task(
    name: str,
    *,
    metric: Metric,
    relative: tuple[str, ...] = (),
    known: Mapping[str, KnownCircuit] | None = None,
    n_discover: int = 32,
    n_evaluate: int = 100,
    per_group: int = 8,
    only_correct: bool = False,
    model: str | None = None,
    registry: Registry[Task] = tasks,
) -> Callable[[Make], Task]:
    """Turns a function that writes prompts into a task, and registers it.

    The function gets the model's `Words`, how many prompts to write and a seeded generator; the
    first line of its docstring is the task's summary. The options are those of `Task`.
    """

    def build(make: Make) -> Task:
        return registry.register(name, make.__module__)(
            Task(
                name,
                (make.__doc__ or name).strip().splitlines()[0],
                metric,
                _endless(name, make),
                relative,
                known or {},
                n_discover,
                n_evaluate,
                per_group,
                only_correct,
                model=model,
            )
        )

    return build


def _endless(name: str, make: Make) -> Sampler:
    """Prompts of one part, round by round, until no new one comes.

    Which part a prompt belongs to is a hash of its key: the parts stay disjoint whatever the
    seeds.
    """

    def sample(words: Words, seed: int, part: Part) -> Iterator[Prompt]:
        rng, seen, idle = Random(f"{name} {seed} {part}"), set(), 0
        while idle < _PATIENCE:
            idle += 1
            for prompt in make(words, _ROUND, rng):
                if part_of(prompt) == part and prompt.clean not in seen:
                    seen.add(prompt.clean)
                    idle = 0
                    yield prompt

    return sample


def _balanced(drawn: Iterator[Prompt]) -> Iterator[Prompt]:
    """One prompt of each kind in turn: small sets differ by luck in names, not in kinds.

    A kind is a template with its labelled words in one order (in IOI: who is named first).
    """
    while pool := list(islice(drawn, _POOL)):
        kinds: dict[tuple[str, ...], list[Prompt]] = {}
        for prompt in pool:
            order = sorted(prompt.spans, key=lambda label: prompt.spans[label])
            kinds.setdefault((prompt.template, *order), []).append(prompt)
        for turn in range(max(map(len, kinds.values()))):
            yield from (prompts[turn] for prompts in kinds.values() if turn < len(prompts))


def part_of(prompt: Prompt) -> Part:
    """The part that a generated prompt belongs to."""
    return _PARTS[key_hash(prompt) % len(_PARTS)]


def key_hash(prompt: Prompt) -> int:
    """A number that depends on the prompt's key alone, in every process."""
    digest = blake2b((prompt.key or prompt.clean).encode(), digest_size=8).digest()
    return int.from_bytes(digest)
