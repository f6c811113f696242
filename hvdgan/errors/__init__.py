"""Errors that end a command with one clear line instead of a traceback."""


class RunError(Exception):
    """The run cannot continue: a disk fails, a loss diverges, or ranks disagree."""

    exit_code = 1


class RankFailed(RunError):
    """Work on one rank has raised something else than a RunError, such as an error in the user's own code.

    All ranks raise it; on the one that failed, `__cause__` is the original error.
    """


class LostPeer(RunError):
    """A collective has failed, because another rank is gone."""


class UserError(RunError):
    """A mistake of the user, such as a wrong flag; the command ends with its message and exit code 2."""

    exit_code = 2


def in_one_line(error: BaseException) -> str:
    """The message of an error without line breaks; the name of its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def list_some(names: list[str], most: int = 5) -> str:
    """Join the first names, and count the rest."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def unwritable(path: object, error: Exception) -> RunError:
    """Return the error of a run that cannot write a file or folder, whose reason is another error."""
    if isinstance(error, RunError):
        return error
    return RunError(f"{path} cannot be written: {error}; free disk space or change the permissions, then resume")
