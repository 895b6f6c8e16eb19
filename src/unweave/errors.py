"""Errors that a user can mend: one line, naming the value found and the remedy."""


class UnweaveError(Exception):
    """Expected, found, and what to do, in one line. The command line prints it and exits with 2."""
