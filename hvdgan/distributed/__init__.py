"""The ranks: joining, collectives, devices, heartbeat; backend is the only module that imports Horovod."""
