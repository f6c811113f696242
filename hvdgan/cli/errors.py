"""The errors that end a run with one clear line instead of a traceback."""


class RunError(Exception):
    """The run cannot go on: a failing disk, a diverged loss, ranks that disagree."""

    exit_code = 1


class LostPeer(RunError):
    """A collective has failed, as it does where another rank has gone."""


class UserError(RunError):
    """What was asked for cannot be done: a wrong flag, a folder without images."""

    exit_code = 2
