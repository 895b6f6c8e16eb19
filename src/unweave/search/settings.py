"""Every constant of the searches that is not an option, with what it does.

docs/study.md ("Constants of the search") has the row of the study behind each, or says that it was
not studied. What a user may change is an option of its search (`unweave methods`).
"""

from dataclasses import dataclass, field

ROUNDING = 1e-6  # a smaller difference in loss or faithfulness may be float32's
PROMPTS = 32  # enough to propose changes of a circuit, each of which is then run


@dataclass(frozen=True)
class LossSettings:
    """The loss that searches minimise.

    Args:
        examples: Weight of single examples' deviations beside that of their mean. The mean alone is
            indifferent: many circuits are right on average, and which of them is found changes with
            the prompts. With this weight searches on other prompts find the same.
    """

    examples: float = 1.0


@dataclass(frozen=True)
class TopSettings:
    """`top`.

    Args:
        sizes: Circuits of nodes that are tried: dense where circuits are small, since there one
            node matters.
        growth: From one number of edges that is tried to the next.
    """

    sizes: tuple[int, ...] = (
        *(1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32),
        *(40, 48, 60, 80, 100),
    )
    growth: float = 1.25


@dataclass(frozen=True)
class DescentSettings:
    """`eliminate` on nodes.

    Args:
        few: With no more nodes than this, no blocks leave by prediction alone.
        tried: How many changes of a circuit are combined: each is run alone, and of all sets of
            them the best is made.
        doubt: What part of a change's predicted size is added to its predicted loss.
        margin: Past the best circuit by this much, the way down ends.
        returning: How many of the nodes outside may join a circuit that is polished.
        blocks: One node in this many leaves at once, the larger block first.
        finalists: How many sets of changes are run on a race's first prompts.
        mean: Weight of faithfulness in the loss of a polish, beside that of single examples.
        doublings: How often it may be doubled where a circuit is not faithful.
        smallest_pool: Models with fewer nodes are searched whole.
        proposing: On how many prompts a prediction is made: of what may join, each of which is
            tried, and of the order of nodes.
        step: Prompts are drawn in multiples of this.
    """

    few: int = 24
    tried: int = 8
    doubt: float = 0.3
    margin: float = 0.1
    returning: int = 12
    blocks: tuple[int, ...] = (5, 10, 20)
    finalists: int = 6
    mean: float = 2.0
    doublings: int = 2
    smallest_pool: int = 12
    proposing: int = PROMPTS
    step: int = PROMPTS


@dataclass(frozen=True)
class RaceSettings:
    """Races between changes of a circuit.

    Args:
        first: Prompts of the first heat.
        errors: Standard errors that a change has to be worse by to be out.
        lasting: Of this many changes at most one goes on to the next heat, if it is not out.
        growth: How many times as many prompts the next heat has.
    """

    first: int = 24
    errors: float = 2.0
    lasting: int = 3
    growth: int = 4


@dataclass(frozen=True)
class OrderSettings:
    """The order of the nodes outside a circuit.

    With `order=measured` nodes join a few at a time, by a prediction at the circuit so far.

    Args:
        soon: It is measured again after this many nodes, then less and less often: each time after
            `1/later` of those that are there already.
    """

    soon: int = 3
    later: int = 4


@dataclass(frozen=True)
class EdgeSettings:
    """`eliminate` on edges; the loss weighs faithfulness as in the search of nodes.

    Args:
        block_price: A block may cost this part of its price: within it, edges that are needed must
            not hide behind those that are not.
        block_loss: And no block may cost more than this, however large it is.
        proposals: How many blocks of a size are run before a smaller one is tried.
        many: In circuits of more edges blocks are put together by means alone, of fewer prompts.
        blocks: One edge in this many leaves at once, in the first blocks and in the smallest ones.
        proposing: On how many prompts effects are taken that propose what leaves or comes back.
        estimated: On how many prompts effects are taken with edges removed, and single edges are
            tried, at most: all prompts decide on those that leave together.
        tried: How many edges are tried in one batch of single changes, and how many are exchanged
            at once, at most.
        worthwhile: Of a larger circuit no more single edges are tried once fewer than this leave of
            a batch.
        returning: How many edges that left last may come back.
        halved: How many sets of an exchange are run, each half of the one before.
        passes: How often edges that were needed are tried again, once others have left, and how
            often edges are exchanged.
        path: How many circuits of the way down the last check looks at.
        removed_shares: Whether an edge does anything is also looked at with this part of every edge
            of the circuit removed.
    """

    block_price: float = 0.5
    block_loss: float = 0.15
    proposals: int = 2
    many: int = 4096
    blocks: tuple[int, int] = (2, 32)
    proposing: int = PROMPTS
    estimated: int = 16
    tried: int = 32
    worthwhile: int = 4
    returning: int = 512
    halved: int = 3
    passes: int = 3
    path: int = 6
    removed_shares: tuple[float, ...] = (0.5,)


@dataclass(frozen=True)
class SearchSettings:
    """All of them, by what they belong to."""

    loss: LossSettings = field(default_factory=LossSettings)
    top: TopSettings = field(default_factory=TopSettings)
    descent: DescentSettings = field(default_factory=DescentSettings)
    race: RaceSettings = field(default_factory=RaceSettings)
    order: OrderSettings = field(default_factory=OrderSettings)
    edges: EdgeSettings = field(default_factory=EdgeSettings)


SEARCH = SearchSettings()
