"""Data frames, where pandas is installed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unweave.errors import UnweaveError

if TYPE_CHECKING:
    import pandas


def frame(columns: Mapping[str, Sequence[Any]]) -> "pandas.DataFrame":
    """A data frame of columns that are equally long.

    Raises:
        UnweaveError: When pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise UnweaveError(
            "to_frame needs pandas, which is not installed: pip install 'unweave[pandas]'"
        ) from None
    return pandas.DataFrame({name: list(values) for name, values in columns.items()})
