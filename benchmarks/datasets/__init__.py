from benchmarks.datasets.command import main

__all__ = ["main"]
