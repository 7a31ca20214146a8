"""Bare pipelines: programs that answer questions with the same model calls and searches as the
gateway, but with nothing else. `benchmarks.overhead` compares the gateway with them.
"""
