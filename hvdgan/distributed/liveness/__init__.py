"""Detects dead, frozen and straggling ranks: heartbeats over TCP, beside Horovod."""
