"""Roles as data: what each is called, what it requires, and how it is checked (roles.toml)."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from unweave.errors import UnweaveError
from unweave.registry import nearest
from unweave.roles.measurements import VALUES, Measurements

_BUNDLED = Path(__file__).with_name("roles.toml")
_KINDS = ("head", "mlp")


@dataclass(frozen=True)
class Bar:
    """A figure with the least or the most that it may be."""

    measure: str
    at_least: float = -math.inf
    at_most: float = math.inf
    says: str = ""

    def met(self, value: float) -> bool:
        """A figure that could not be measured (NaN) meets nothing."""
        return self.at_least <= value <= self.at_most

    def near(self, value: float, error: float) -> bool:
        """Within two standard errors of a limit: other prompts could decide otherwise.

        A figure whose error is not known (NaN) is near nothing: it decides as it is.
        """
        return min(abs(value - self.at_least), abs(value - self.at_most)) <= 2 * error

    @property
    def limit(self) -> str:
        """What is asked, in words."""
        limits = (("at least", self.at_least), ("at most", self.at_most))
        return " and ".join(f"{word} {x:g}" for word, x in limits if math.isfinite(x))


@dataclass(frozen=True)
class Check:
    """One claim of a role, tested by an intervention.

    Args:
        held: None where the intervention could not be made.
    """

    says: str
    measure: str
    value: float
    held: bool | None

    @staticmethod
    def of(bar: Bar, values: dict[str, float]) -> "Check":
        value = values.get(bar.measure, math.nan)
        return Check(bar.says, bar.measure, value, None if math.isnan(value) else bar.met(value))


@dataclass(frozen=True)
class Role:
    """A role with the evidence that it requires, and the interventions that test it."""

    name: str
    of: tuple[str, ...]
    says: str
    evidence: tuple[Bar, ...]
    checks: tuple[Bar, ...] = ()


@dataclass(frozen=True)
class Undecided:
    """A role that other prompts could give or take: a figure that it rests on is near its limit.

    Args:
        given: Whether the figures as they are meet the role.
        error: Standard error of the value over prompts.
        limit: What the role requires of it.
    """

    role: str
    given: bool
    measure: str
    value: float
    error: float
    limit: str


@dataclass(frozen=True)
class Roles:
    """Known roles, and what all of them require."""

    roles: tuple[Role, ...]
    matters: tuple[Bar, ...]

    def of(self, node: Measurements) -> list[Role]:
        """The roles whose evidence a node meets; none where it does not matter."""
        values = node.values()

        def meets(bars: Sequence[Bar]) -> bool:
            return all(bar.met(values.get(bar.measure, math.nan)) for bar in bars)

        if not meets(self.matters):
            return []
        return [role for role in self.roles if node.kind in role.of and meets(role.evidence)]

    def undecided(self, node: Measurements) -> list[Undecided]:
        """Each figure that is near the limit of a role which nothing else rules out."""
        values, given = node.values(), {role.name for role in self.of(node)}
        found = []
        for role in self.roles:
            near, ruled_out = [], node.kind not in role.of
            for bar in (*self.matters, *role.evidence):
                value, error = values.get(bar.measure, math.nan), node.error_of(bar.measure)
                if bar.near(value, error):
                    is_given = role.name in given
                    near.append(
                        Undecided(role.name, is_given, bar.measure, value, error, bar.limit)
                    )
                ruled_out |= not bar.met(value) and not bar.near(value, error)
            found += [] if ruled_out else near
        return found


@cache
def bundled_roles() -> Roles:
    """The roles that come with unweave."""
    return _read(_BUNDLED, None)


def read_roles(path: str | Path | None) -> Roles:
    """The bundled roles, with those of a user's file added or replaced.

    Raises:
        UnweaveError: When the file cannot be read, or a role in it is not complete, naming it.
    """
    return bundled_roles() if path is None else _read(Path(path), bundled_roles())


def _read(path: Path, known: Roles | None) -> Roles:
    try:
        record = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UnweaveError(f"cannot read the roles {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UnweaveError(
            f"{path} is not TOML ({error}): write it as src/unweave/roles/roles.toml"
        ) from error
    listed = record.get("role", [])
    if not isinstance(listed, list) or not all(isinstance(role, dict) for role in listed):
        raise UnweaveError(f"{path}: expected roles as [[role]] tables")
    own = {role.name: role for role in (_role(path, role) for role in listed)}
    before = {} if known is None else {role.name: role for role in known.roles}
    if "matters" in record:
        matters = _bars(path, "matters", record["matters"].get("evidence", []))
    else:
        matters = () if known is None else known.matters
    return Roles(tuple((before | own).values()), matters)


def _role(path: Path, record: Mapping[str, Any]) -> Role:
    name = record.get("name", "?")
    missing = [key for key in ("name", "of", "says", "evidence") if not record.get(key)]
    if missing:
        raise UnweaveError(f"{path}: role {name!r} has no {', '.join(missing)}")
    of = (record["of"],) if isinstance(record["of"], str) else tuple(record["of"])
    if not set(of) <= set(_KINDS):
        raise UnweaveError(f"{path}: role {name!r} is of {of}: expected {' or '.join(_KINDS)}")
    evidence = _bars(path, name, record["evidence"])
    return Role(name, of, record["says"], evidence, _bars(path, name, record.get("checks", [])))


def _bars(path: Path, name: str, records: Sequence[Mapping[str, Any]]) -> tuple[Bar, ...]:
    bars = []
    for record in records:
        measure, limits = record.get("measure", "?"), set(record) - {"measure", "says"}
        if measure not in VALUES:
            raise UnweaveError(
                f"{path}: role {name!r} requires {measure!r}, which is not measured: "
                f"{nearest(measure, VALUES)}"
            )
        if not limits or not limits <= {"at_least", "at_most"}:
            raise UnweaveError(
                f"{path}: role {name!r}, {measure}: expected at_least or at_most, "
                f"found {', '.join(sorted(limits)) or 'neither'}"
            )
        numbers = {limit: record[limit] for limit in limits}
        if not all(isinstance(x, int | float) for x in numbers.values()):
            raise UnweaveError(f"{path}: role {name!r}, {measure}: expected a number, as 0.5")
        bounds = {limit: float(x) for limit, x in numbers.items()}
        bars.append(Bar(measure, **bounds, says=record.get("says", "")))
    return tuple(bars)
