"""Errors that a user can fix: one line, naming the value found and the remedy."""


class UnweaveError(Exception):
    """Expected, found, and what to do, in one line. The command line prints it and exits with 2."""


class NotFiniteError(UnweaveError):
    """NaN or an infinite value where a number was expected: never a reason to go on without it."""


class UnweaveWarning(UserWarning):
    """What was done otherwise than asked, in one line. The command line prints it as a note."""
