"""make bench-cli: how soon the command line answers for help. Seconds of a whole process, its imports included."""

import resource
import subprocess
import sys
import time

from proofs.figures import Row, percentile, report

RUNS = 9
WORDS = (("--help",), ("up", "--help"), ("run", "--help"), ("show", "--help"))


def measured(words: tuple[str, ...]) -> Row:
    """Return the figures of one command."""
    taken, before = [], resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "evener.cli", *words], stdout=subprocess.DEVNULL, check=True)
        taken.append(time.perf_counter() - began)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    command = " ".join(("evener", *words))
    return {"command": command, "median_s": percentile(taken, 0.5), "slowest_s": max(taken), "cpu_s": used / RUNS}


if __name__ == "__main__":
    report("bench-cli", "Help, seconds", [measured(words) for words in WORDS])
