"""The ranks: joining, collectives, devices, heartbeat. The only package that imports Horovod."""
