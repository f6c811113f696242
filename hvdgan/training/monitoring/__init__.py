"""What is watched between steps: metrics, samples, evaluation, guards, stopping."""
