"""Bare pipelines, which do the same calls as the gateway and nothing else: yardsticks of
`benchmarks.overhead`.
"""
