"""Draws report.png, the first screen of a page: a completion in three stages on two ranks that was resumed twice.

    python docs/draw_report.py [RUN_DIR]

It takes about three minutes, and needs Chromium and its driver; a run that is there already is not trained again.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAGS = "--recipe completion --data digits --image-size 32 --nf 8 --global-batch-size 32 --learning-rate 1e-3"
STAGES = "--stages completion=160,discriminator=60,joint=240 --log-every 10 --sample-every 20 --holdout 0.05"
EVALUATION = "--eval-samples 64 --eval-every 20 --best-metric eval/hole_psnr"
STEPS = (120, 300, 460)
"""steps at which the run is interrupted, and the last"""
WIDTH, HEIGHT = 1100, 1440


def main() -> None:
    """Train, and take the picture."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "completion"
        if not run.exists():
            for steps in STEPS:
                train(run, steps)
        sys.path.insert(0, str(ROOT / "tests" / "support"))
        from browsing import Browser

        browser = Browser(Path(folder) / "profile")
        try:
            browser.open(run / "report.html", width=WIDTH)
            while not browser.run("return document.documentElement.dataset.drawn"):
                time.sleep(0.1)
            time.sleep(1.0)  # for a last layout
            browser.picture(ROOT / "docs" / "report.png", HEIGHT)
        finally:
            browser.close()


def train(run: Path, steps: int) -> None:
    """Start or resume the run on two ranks, and stop it after some steps."""
    words = [*FLAGS.split(), *STAGES.split(), *EVALUATION.split(), "--max-steps", str(steps), "--run-dir", str(run)]
    command = [str(ROOT / "launch" / "single_node.sh"), "-np", "2", "--", *words]
    subprocess.run(command, check=True, timeout=900)


if __name__ == "__main__":
    main()
