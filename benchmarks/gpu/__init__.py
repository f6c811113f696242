"""The checks and measurements of benchmarks/gpu.sh."""
