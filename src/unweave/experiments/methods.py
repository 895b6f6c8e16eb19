"""Methods: named pairs of a score and a search, with the options that make them what they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unweave.errors import UnweaveError
from unweave.options import Options
from unweave.registry import nearest
from unweave.scores.score import scores
from unweave.search.search import searches


@dataclass(frozen=True)
class Method:
    """A score behind a search.

    Args:
        score_options, search_options: Options that differ from their defaults.
    """

    name: str
    score: str
    search: str
    score_options: Options = field(default_factory=dict)
    search_options: Options = field(default_factory=dict)
    summary: str = ""

    def with_options(self, given: Options) -> "Method":
        """With more options, each for the part that knows it.

        Raises:
            UnweaveError: For an option that neither part knows, or a value outside its meaning.
        """
        score, search = scores[self.score], searches[self.search]
        known = {**score.options, **search.options}
        for name in given:
            if name not in known:
                raise UnweaveError(
                    f"neither score {self.score} nor search {self.search} has an option {name!r}: "
                    f"{nearest(name, known)}"
                )

        def mine(part: Mapping[str, Any], old: Options) -> dict[str, Any]:
            return {**old, **{name: value for name, value in given.items() if name in part}}

        score_options = mine(score.options, self.score_options)
        search_options = mine(search.options, self.search_options)
        score.filled(score_options)
        search.filled(search_options)
        return Method(self.name, self.score, self.search, score_options, search_options)

    def named(self) -> dict[str, Any]:
        """The method as fields of a specification."""
        options = {**self.score_options, **self.search_options}
        return {"method": None, "score": self.score, "search": self.search, "options": options}

    @property
    def finds_edges(self) -> bool:
        """Whether both parts know edges."""
        return scores[self.score].edges is not None and searches[self.search].edges is not None

    def check_edges(self) -> None:
        """Checks that both parts know edges.

        Raises:
            UnweaveError: Naming the part that does not, and those that do.
        """
        parts = (("score", "rates", self.score, scores), ("search", "finds", self.search, searches))
        for kind, does, name, registry in parts:
            if registry[name].edges is None:
                able = ", ".join(one for one in registry if registry[one].edges is not None)
                raise UnweaveError(f"{kind} {name} {does} nodes, not edges: {able} can")

    def filled_score(self) -> Options:
        """All options of the score; relevance between nodes where the search asks for it."""
        score = scores[self.score]
        asked = {"pairs": True} if searches[self.search].pairs and score.pairs else {}
        return score.filled({**asked, **self.score_options})

    def filled_search(self) -> Options:
        """All options of the search."""
        return searches[self.search].filled(self.search_options)


_NAMED = (
    Method(
        "eap+eliminate", "eap", "eliminate", summary="the default: a cheap score, then a search"
    ),
    Method(
        "cdt",
        "decomposition",
        "eliminate",
        summary="decomposition behind the same search; the default for edges",
    ),
    Method(
        "cdt-paper",
        "decomposition",
        "algorithm1",
        {"rules": "paper"},
        summary="the paper's rules and its Algorithm 1",
    ),
    Method("patching", "patching", "top", summary="exact activation patching"),
    Method("acdc", "random", "acdc", summary="ACDC; it needs no scores"),
    Method("eap", "eap", "top", summary="attribution patching"),
    Method("eap-ig", "eap-ig", "top", summary="attribution patching with integrated gradients"),
    Method("relp", "relp", "top", summary="relevance propagation"),
    Method("gim", "gim", "top", summary="attribution patching with modified gradients"),
    Method("masks", "masks", "top", summary="learned gates: node and edge pruning"),
    Method("random", "random", "top", summary="random scores: what a method has to beat"),
)
METHODS: Mapping[str, Method] = {method.name: method for method in _NAMED}
# Behind the same search EAP gives circuits of nodes as good as decomposition's, at an eighth of the
# score's cost (README's table). Which node feeds which is what decomposition is for.
DEFAULTS: Mapping[str, str] = {"node": "eap+eliminate", "edge": "cdt"}


def find_method(
    name: str | None, score: str | None = None, search: str | None = None, level: str = "node"
) -> Method:
    """A named method, or a free combination of a score and a search.

    Args:
        name: "cdt", "eap", …; "decomposition", any other score, is that score behind `top`; None
            for the default.
        score, search: In place of the method's own.
        level: What circuits are made of, which decides on the default.

    Raises:
        UnweaveError: For an unknown name or level.
    """
    if level not in DEFAULTS:
        raise UnweaveError(f"level {level!r}: expected {' or '.join(DEFAULTS)}")
    name = DEFAULTS[level] if name is None else name
    if name not in METHODS and "+" in name:
        # "eap-ig+eliminate": a pair by its parts, as tables and records have it.
        parts, name = name.partition("+"), DEFAULTS[level]
        score = parts[0] if score is None else score
        search = parts[2] if search is None else search
    if name not in METHODS and name in scores:
        name, score, search = DEFAULTS[level], score or name, search or "top"
    if name not in METHODS:
        known = {*METHODS, *scores}
        raise UnweaveError(f"unknown method {name!r}: {nearest(name, known)}, or SCORE+SEARCH")
    method = METHODS[name]
    if score is None and search is None:
        return method
    score = method.score if score is None else score
    search = method.search if search is None else search
    if (score, search) == (method.score, method.search):
        return method
    for registry, part in ((scores, score), (searches, search)):
        registry[part]  # an error that says which there are
    for known in _NAMED:
        if (known.score, known.search) == (score, search) and not known.score_options:
            return known
    own = method.score_options if score == method.score else {}
    return Method(f"{score}+{search}", score, search, own)


def read_options(method: Method, texts: list[str]) -> dict[str, Any]:
    """Options from `name=value`, as the command line has them.

    Raises:
        UnweaveError: For a text without "=", an unknown name, or a value outside its meaning.
    """
    parts = (("score", method.score, scores[method.score].options),)
    parts += (("search", method.search, searches[method.search].options),)
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UnweaveError(f"option {text!r}: expected name=value")
        owners = [(f"{kind} {part}", known) for kind, part, known in parts if name in known]
        if not owners:
            method.with_options({name: value})  # says which there are
        for owner, known in owners:
            given[name] = known[name].read(owner, name, value)
    return given
