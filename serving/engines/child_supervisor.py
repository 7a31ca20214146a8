"""Run a program. When the parent of this process dies, end the program and all its descendants.

When a process dies, Linux can signal its children (`PR_SET_PDEATHSIG`), but not its grandchildren.
Launchers such as `npx` run the real server as their child. So this supervisor runs between the
gateway and the launcher. When the gateway dies, Linux sends SIGTERM to the supervisor, which ends
its whole process group. Popen's `preexec_fn` cannot be used instead: in a process with gRPC's
threads, code between fork and exec sometimes aborts.

Usage: `python -I -S child_supervisor.py PROGRAM [ARGUMENT …]`, as the leader of a new session.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_GRACE_S = 5


def _kill_group(*_signal: object) -> None:
    os.killpg(0, signal.SIGKILL)


def _end_group(*_signal: object) -> None:
    """Send SIGTERM to the group of this process, and SIGKILL after `_GRACE_S` seconds."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    signal.signal(signal.SIGALRM, _kill_group)
    signal.alarm(_GRACE_S)


def main() -> None:
    """Run the program that the command-line arguments name, and exit with the program's status."""
    signal.signal(signal.SIGTERM, _end_group)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    child = os.fork()
    if child == 0:
        os.execv(sys.argv[1], sys.argv[1:])

    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        _kill_group()
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
