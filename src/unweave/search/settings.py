"""Every constant of the searches that is not an option, with what it does.

docs/study.md ("Halved and doubled") has what each changes when it is halved and doubled, and names
the row that it was chosen by, where there is one. What a user may change is an option of its search
(`unweave methods`).
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LossSettings:
    """The loss that searches minimise."""

    examples: float = 1.0
    """Weight of single examples' deviations beside that of their mean. The mean alone is
    indifferent: many circuits are right on average, and which of them is found changes with
    the prompts. With this weight searches on other prompts find the same."""
    rounding: float = 1e-6
    """A smaller difference in loss may be float32's."""


@dataclass(frozen=True)
class TopSettings:
    """`top`."""

    sizes: tuple[int, ...] = (
        *(1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32),
        *(40, 48, 60, 80, 100),
    )
    """Circuits of nodes that are tried: dense where circuits are small, since there one
    node matters."""
    growth: float = 1.25
    """From one number of edges that is tried to the next."""


@dataclass(frozen=True)
class DescentSettings:
    """The way down, and the order of nodes."""

    few: int = 24
    """With no more nodes than this, no blocks leave by prediction alone."""
    tried: int = 8
    """How many changes of a circuit are combined: each is run alone, and of all sets of
    them the best is made."""
    doubt: float = 0.3
    """What part of a change's predicted size is added to its predicted loss."""
    margin: float = 0.1
    """Past the best circuit by this much, the way down ends."""
    blocks: tuple[int, ...] = (5, 10, 20)
    """One node in this many leaves at once, the larger block first."""
    proposing: int = 32
    """On how many prompts a prediction is made: of what may leave or join, which is then
    run, and of the order of nodes."""
    ordered: int = 8
    """Of the nodes outside the circuit one in this many leaves at once where they are
    ordered (`order=measured`); the circuit's own leave one at a time."""


@dataclass(frozen=True)
class PolishSettings:
    """A polish."""

    returning: int = 12
    """How many of the nodes outside may join the circuit."""
    finalists: int = 6
    """How many sets of changes are run on a race's first prompts."""
    mean: float = 2.0
    """Weight of faithfulness in the loss, beside that of single examples."""


@dataclass(frozen=True)
class RoundSettings:
    """The rounds of `eliminate`."""

    begin: float = 0.25
    """A way down begins where |1 − f| is at most this, with more nodes than a pool where
    that takes more: it cannot find what is not there."""
    checks: int = 3
    """How often a search goes on from a circuit that check prompts find wanting."""
    smallest_pool: int = 12
    """Models with fewer nodes are searched whole."""


@dataclass(frozen=True)
class RaceSettings:
    """Races between changes of a circuit."""

    first: int = 24
    """Prompts of the first heat."""
    errors: float = 2.0
    """Standard errors that a change has to be worse by to be out."""
    lasting: int = 3
    """Of this many changes at most one goes on to the next heat, if it is not out."""
    growth: int = 4
    """How many times as many prompts the next heat has."""


@dataclass(frozen=True)
class EdgeSettings:
    """`eliminate` on edges, with the weight of faithfulness and the prompts of predictions that the
    search of nodes has."""

    block_price: float = 0.5
    """A block may cost this part of its price: within it, edges that are needed must not
    hide behind those that are not."""
    block_loss: float = 0.15
    """And no block may cost more than this, however large it is."""
    proposals: int = 2
    """How many blocks of a size are run before a smaller one is tried."""
    many: int = 4096
    """In circuits of more edges blocks are put together by means alone, of fewer prompts."""
    smallest_block: int = 32
    """One edge in this many leaves at once in the smallest blocks; in the first ones every
    other edge does."""
    estimated: int = 16
    """On how many prompts, at most, effects are taken in circuits of more than `many`
    edges, and single edges are tried in any: all prompts decide on those that leave
    together."""
    tried: int = 32
    """How many edges are tried in one batch of single changes, and how many are exchanged
    at once, at most."""
    worthwhile: int = 4
    """Of a larger circuit no more single edges are tried once fewer than this leave of a
    batch."""
    returning: int = 512
    """How many edges that left last may come back."""
    passes: int = 3
    """How often edges that were needed are tried again, once others have left, and how
    often edges are exchanged."""
    halved: int = 3
    """How many sets of an exchange are run, each half of the one before."""
    path: int = 6
    """How many circuits of the way down the last check looks at."""
    removed: float = 0.5
    """Whether an edge does anything is also looked at with this part of every edge of the
    circuit removed."""


@dataclass(frozen=True)
class SearchSettings:
    """All of them, by what they belong to."""

    loss: LossSettings = field(default_factory=LossSettings)
    top: TopSettings = field(default_factory=TopSettings)
    descent: DescentSettings = field(default_factory=DescentSettings)
    polish: PolishSettings = field(default_factory=PolishSettings)
    rounds: RoundSettings = field(default_factory=RoundSettings)
    race: RaceSettings = field(default_factory=RaceSettings)
    edges: EdgeSettings = field(default_factory=EdgeSettings)


SEARCH = SearchSettings()
