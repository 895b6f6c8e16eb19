"""`Task`: a behaviour as prompts with a metric, and the registry of tasks.

A task is one decorated function that writes prompts:

    @task("capitals", metric=LOGIT_DIFFERENCE)
    def capitals(words: Words, n: int, rng: Random) -> list[Prompt]:
        '''A country's capital follows its name.'''
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypedDict, Unpack

from unweave.batch import Batch
from unweave.behaviours.accuracy import ROWS, clean_metric
from unweave.behaviours.encoding import encode, to_batch
from unweave.behaviours.prompt import Prompt
from unweave.behaviours.published import ModelShape, PublishedRoles
from unweave.behaviours.sampling import (
    Part,
    Sampler,
    Templates,
    Write,
    balanced,
    every_group,
    generated,
)
from unweave.behaviours.words import Words
from unweave.errors import UnweaveError
from unweave.metrics import Metric
from unweave.model.model import Model
from unweave.model.sources import DEFAULT
from unweave.registry import Registry
from unweave.sites import Site, parse

PER_GROUP = 64  # reference prompts a group: with 8, the mean alone moves faithfulness by .05
ONE_GROUP = 256  # of a task with a single template, whose errors no other template averages out
MOST_PROMPTS = 10_000  # of one part


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
        roles: What the authors call its heads, each at the position where it acts.
        shape: The model's, so that a folder with another name is recognised.
    """

    nodes: tuple[Site, ...]
    reference: str
    added: tuple[Site, ...] = ()
    aliases: tuple[str, ...] = ()
    ablations: Mapping[str, tuple[Site, ...]] = field(default_factory=dict)
    edges: Mapping[str, tuple[tuple[Site, Site], ...]] = field(default_factory=dict)
    roles: PublishedRoles = field(default_factory=dict)
    shape: ModelShape | None = None

    def under(self, ablation: str) -> tuple[Site, ...]:
        """Its nodes under an ablation."""
        return self.ablations.get(ablation, self.nodes)

    @property
    def augmented(self) -> tuple[Site, ...]:
        return self.nodes + self.added


def heads(text: str) -> tuple[Site, ...]:
    """Reads "9.9 10.0 …" (layer.head), as papers print circuits."""
    return tuple(parse(name) for name in text.split())


class Choice(TypedDict, total=False):
    """Which prompts are drawn; see `Task.prompts`."""

    seed: int
    part: Part
    per_group: int | None
    only_correct: bool | None
    templates: Templates | None


@dataclass(frozen=True, eq=False)
class Task:
    """A behaviour to explain.

    Args:
        name: Its name on the command line and in results.
        summary: One line about it.
        metric: Read from the logits at `end`.
        sampler: Prompts of one part, in an order that depends on the seed.
        relative: Positions counted from a named one, such as "S1+1".
        known: Published circuits by the model's name.
        n_discover, n_evaluate: Default numbers of prompts.
        per_group: Default number of reference prompts a group.
        only_correct: Whether to keep only the prompts that the model answers correctly.
        first_token: Whether the first token of a longer answer stands for it.
        model: The bundled classifier whose classes are the answers; None for a task of any
            language model.
        new_templates: Templates that only evaluation uses; the search never sees them.
        sizes: How many prompts each part has; None where prompts are generated.
        lines: A file's prompts by line, all of which are checked before the first is drawn.
        digest: A hash of a file or dataset, which may change between two runs.
    """

    name: str
    summary: str
    metric: Metric
    sampler: Sampler
    relative: tuple[str, ...] = ()
    known: Mapping[str, KnownCircuit] = field(default_factory=dict)
    n_discover: int = 32
    n_evaluate: int = 100
    per_group: int = PER_GROUP
    only_correct: bool = False
    first_token: bool = False
    model: str | None = None
    new_templates: tuple[str, ...] = ()
    sizes: Mapping[Part, int] | None = None
    lines: tuple[tuple[int, Prompt], ...] = ()
    digest: str | None = None

    @property
    def own_model(self) -> str:
        """The default model: a task that is for one model has its name."""
        return self.model or (self.name if self.name in self.known else DEFAULT)

    def batch(self, model: Model, n: int | None = None, **choice: Unpack[Choice]) -> Batch:
        """Prompts of one part as tensors for a model; see `prompts`."""
        return self.encode(model, self.prompts(model, n, **choice))

    def prompts(
        self,
        model: Model,
        n: int | None = None,
        seed: int = 0,
        part: Part = "discover",
        *,
        per_group: int | None = None,
        only_correct: bool | None = None,
        templates: Templates | None = None,
    ) -> list[Prompt]:
        """Draws prompts: the same for the same seed, and no prompt in two parts.

        The parts are "discover" (to search on), "check" (for the search to check itself on),
        "evaluate" (to report) and "reference" (for means over corrupted prompts). In the last,
        every group (template, token lengths) gets `per_group` prompts, and `n` only caps their
        number. A smaller `n` gives the first prompts of a larger one; there are fewer than `n`
        where the task has no more (see `require`).

        Args:
            templates: "seen" for those that the search uses, "new" for those that it never sees;
                discovery and check use "seen" by default, evaluation and reference "all".

        Raises:
            UnweaveError: When there are none, or the model answers too few correctly.
        """
        if self.model is not None and not model.network.head.labels:
            raise UnweaveError(
                f"task {self.name} asks for classes and {model.name} has none: use "
                f"{self.model} (--model {self.model})"
            )
        for count in (n, per_group):
            if count is not None:
                check_count(count)
        words = Words(model)
        self._check_lines(words)
        drawn = self._sample(words, seed, part, templates)
        if part == "reference":
            chosen = every_group(words, drawn, per_group or self.per_group)[:n]
        else:
            n = n or (self.n_evaluate if part == "evaluate" else self.n_discover)
            drawn = balanced(drawn)
            strict = self.only_correct if only_correct is None else only_correct
            chosen = self._correct(words, drawn, n) if strict else list(islice(drawn, n))
        if not chosen:
            raise UnweaveError(f"task {self.name} has no prompts for part {part!r}: add some")
        return chosen

    def require(
        self, model: Model, n: int, part: Part = "discover", templates: Templates | None = None
    ) -> None:
        """Checks, before any forward pass, that a part has this many prompts.

        Raises:
            UnweaveError: When it has fewer.
        """
        check_count(n)
        found = sum(1 for _ in islice(self._sample(Words(model), 0, part, templates), n))
        if found < n:
            raise UnweaveError(
                f"task {self.name} has {found} prompts for part {part!r}, {n} were asked for: ask "
                "for fewer, or add prompts"
            )

    def encode(self, model: Model, prompts: list[Prompt]) -> Batch:
        """Prompts of this task as tensors for a model."""
        return self._encode(Words(model), prompts)

    def known_circuit(self, model: Model | str) -> KnownCircuit | None:
        """The published circuit of a model, by its name, hub address or alias, else its shape."""
        name = model if isinstance(model, str) else model.name
        short = name.rpartition("/")[2].lower()
        for known, circuit in self.known.items():
            if short in (known, *circuit.aliases):
                return circuit
        shape = None if isinstance(model, str) else ModelShape.of(model)
        fitting = (one for one in self.known.values() if shape is not None and one.shape == shape)
        return next(fitting, None)

    def _check_lines(self, words: Words) -> None:
        for line, prompt in self.lines:
            try:
                encode(words, prompt, self.relative, self.first_token)
            except UnweaveError as error:
                raise UnweaveError(f"task {self.name}, line {line}: {error}") from error

    def _sample(
        self, words: Words, seed: int, part: Part, templates: Templates | None
    ) -> Iterator[Prompt]:
        """Prompts of one part with the templates asked for."""
        if templates == "new" and not self.new_templates:
            raise UnweaveError(
                f"task {self.name} keeps no template for evaluation alone: use templates='all'"
            )
        wanted = templates or ("seen" if part in ("discover", "check") else "all")
        drawn = self.sampler(words, seed, part)
        if wanted == "all":
            return drawn
        return (p for p in drawn if (p.template in self.new_templates) == (wanted == "new"))

    def _encode(self, words: Words, prompts: list[Prompt]) -> Batch:
        return to_batch(words, prompts, self.metric, self.relative, self.first_token)

    def _correct(self, words: Words, drawn: Iterator[Prompt], n: int) -> list[Prompt]:
        kept, seen = [], 0
        while len(kept) < n and (chunk := list(islice(drawn, ROWS))):
            seen += len(chunk)
            right = (clean_metric(words.model, self._encode(words, chunk)) > 0).tolist()
            kept += [prompt for prompt, good in zip(chunk, right, strict=True) if good]
            if seen >= 64 and len(kept) < seen / 10:
                break
        if not kept or (seen >= 64 and len(kept) < seen / 10):
            raise UnweaveError(
                f"{words.model.name} answers {len(kept)} of {seen} prompts of {self.name} "
                "correctly: it cannot do the task; choose another model, or try bos=True"
            )
        return kept[:n]


def check_count(n: int) -> None:
    """Raises unless this many prompts can be asked for at all."""
    if not 1 <= n <= MOST_PROMPTS:
        raise UnweaveError(f"{n} prompts: expected 1 to {MOST_PROMPTS}")


tasks: Registry[Task] = Registry("task", "unweave.behaviours")
# Tasks for one synthetic model each, whose circuit is known by construction.
synthetic_tasks: Registry[Task] = Registry("task", "unweave.behaviours.synthetic")


def task(
    name: str,
    *,
    metric: Metric,
    relative: tuple[str, ...] = (),
    known: Mapping[str, KnownCircuit] | None = None,
    n_discover: int = 32,
    n_evaluate: int = 100,
    per_group: int = PER_GROUP,
    only_correct: bool = False,
    model: str | None = None,
    new_templates: tuple[str, ...] = (),
    registry: Registry[Task] = tasks,
) -> Callable[[Write], Task]:
    """Turns a function that writes prompts into a task, and registers it.

    The function gets the model's `Words`, how many prompts to write and a seeded generator; the
    first line of its docstring is the task's summary. The options are those of `Task`.
    """

    def register(write: Write) -> Task:
        return registry.register(name, write.__module__)(
            Task(
                name,
                (write.__doc__ or name).strip().splitlines()[0],
                metric,
                generated(name, write),
                relative,
                known or {},
                n_discover,
                n_evaluate,
                per_group,
                only_correct,
                model=model,
                new_templates=new_templates,
            )
        )

    return register
