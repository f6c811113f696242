"""Measures how fast a run is, where the time of a step goes, and how it scales over ranks.

`launches` starts the processes with `starter`. Each process is a `worker`, which measures the training loop
(`measured`) in `blocks` of steps as its `spec` says. `summary` computes medians and efficiencies, `report` shows them.
"""
