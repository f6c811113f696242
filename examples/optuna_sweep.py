"""Looks for a learning rate with Optuna (pip install optuna), and prunes trials early: python examples/optuna_sweep.py

`hvdgan report runs/optuna --out sweep.html` compares the trials.
"""

import optuna

import hvdgan

METRIC = "eval/sliced_wasserstein"
"""distance of generated digits to real ones; the smaller the better"""
SETTINGS = {"recipe": "dcgan", "data": "digits", "nf": 16, "steps": 400, "eval_samples": 512, "eval_every": 100}


class Reporter(hvdgan.Logger):
    """Reports the metric to Optuna, and ends the run if the trial is not promising."""

    def __init__(self, trial):
        self.trial = trial

    def scalars(self, step, values):
        if METRIC in values:
            self.trial.report(values[METRIC], step)
            if self.trial.should_prune():
                raise hvdgan.StopRun("Optuna prunes this trial")


def objective(trial):
    """Train a GAN, and return its metric."""
    rate = trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True)
    run = hvdgan.fit(
        **SETTINGS,
        learning_rate=rate,
        run_dir=f"runs/optuna/trial-{trial.number}",
        logger=["tensorboard", Reporter(trial)],
    )
    if not run.is_finished:
        raise optuna.TrialPruned
    return run.metrics[METRIC]


if __name__ == "__main__":
    study = optuna.create_study(direction="minimize", pruner=optuna.pruners.MedianPruner(n_startup_trials=3))
    study.optimize(objective, n_trials=10)
    print(study.best_params, study.best_value)
