"""Bare pipelines that make the gateway's calls and nothing else: baselines of
`benchmarks.overhead`.
"""
