"""One target fuzzed by atheris, in a process of its own: `python -m benchmarks.fuzz_child TARGET LIBFUZZER_OPTION…`.

Whenever an input takes longer than all before, it is told: `slowest MICROSECONDS BYTES`.
"""

import sys
from collections.abc import Callable

import atheris

from benchmarks.cpu_time import cpu_s


def told(target: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """`target`, telling its slowest inputs; what was slow but once, as with a pause of the machine's, is none."""
    slowest = 0.0

    def run(data: bytes) -> None:
        nonlocal slowest
        took = cpu_s(lambda: target(data))
        if took > slowest and (took := min(took, cpu_s(lambda: target(data)))) > slowest:
            slowest = took
            print(f"\nslowest {took * 1e6:.0f} {data[:200]!r}", flush=True)

    return run


if __name__ == "__main__":
    with atheris.instrument_imports(include=["router"]):
        from benchmarks.fuzz_targets import TARGETS
    atheris.Setup([sys.argv[0], *sys.argv[2:]], told(TARGETS[sys.argv[1]]))
    atheris.Fuzz()
