"""Detects dead, frozen and straggling ranks: heartbeats over TCP, independent of Horovod."""
