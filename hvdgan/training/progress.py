"""Shows a run's progress on the terminal: as a bar, or as lines where stderr is no terminal."""

import sys

from tqdm import tqdm


class Progress:
    """Progress of the steps on stderr.

    Args:
        start_step: number of steps done before.
        total_steps: number of steps at which the run ends.
    """

    def __init__(self, start_step: int, total_steps: int) -> None:
        self._bar = tqdm(
            total=total_steps, initial=start_step, unit="step", file=sys.stderr, dynamic_ncols=True, mininterval=0.5,
            disable=not sys.stderr.isatty(),
        )  # fmt: skip

    def print(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar.disable:
            print(text, file=sys.stderr, flush=True)
        else:
            self._bar.write(text, file=sys.stderr)

    def advance(self, stage: str) -> None:
        """Advance the bar by one step of this stage."""
        if not self._bar.disable:
            self._bar.set_description(stage, refresh=False)
            self._bar.update()

    def show(self, step: int, stage: str, values: dict[str, float]) -> str | None:
        """Show the losses, the speed and the time left.

        Args:
            step: number of steps done.
            stage: name of the stage.
            values: metrics by name, with images_per_sec and step_seconds among them.

        Returns:
            The line to log; None if the bar shows the values.
        """
        losses = " ".join(f"{name} {value:.4g}" for name, value in values.items() if name.endswith("/loss"))
        speed = f"{losses} {values['images_per_sec']:.1f} images/s"
        if not self._bar.disable:
            self._bar.set_postfix_str(speed)
            return None
        left = _clock((self._bar.total - step) * values["step_seconds"])
        return f"step {step}/{self._bar.total} {stage} {speed}, {left} left"

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
