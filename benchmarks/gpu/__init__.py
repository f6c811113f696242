"""The checks and measurements of benchmarks/gpu.sh, one part in each module."""
