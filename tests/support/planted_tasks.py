"""Tasks with planted faults, beside sound ones: what a validation has to find, and what it must let pass."""

from pathlib import Path
from typing import Final

from evener.graders.validation import Fault

SUM: Final = '[ "$(cat answer.txt 2>/dev/null)" = 42 ]'
REWARD: Final = " && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"
SOUND: Final = {"tests/test.sh": SUM + REWARD, "solution/solve.sh": "echo 42 > answer.txt\n"}
LEAK: Final = {
    "environment/checks.txt": "42\n",
    "tests/checks.patch": "--- /dev/null\n+++ b/checks.txt\n@@ -0,0 +1 @@\n+42\n",
}

EXPECTED: Final[dict[str, frozenset[Fault]]] = {
    "sound-script": frozenset(),
    "sound-answer": frozenset(),
    "sound-without-oracle": frozenset(),
    "wrong-oracle": frozenset({Fault.ORACLE_FAILS}),
    "wrong-answer-file": frozenset({Fault.ORACLE_FAILS}),
    "oracle-crashes": frozenset({Fault.ORACLE_FAILS}),
    "flaky-test": frozenset({Fault.FLAKY, Fault.ORACLE_FAILS}),
    "flaky-no-op": frozenset({Fault.FLAKY, Fault.PASSES_WITHOUT_WORK}),
    "passes-on-no-op": frozenset({Fault.PASSES_WITHOUT_WORK}),
    "empty-answer-passes": frozenset({Fault.PASSES_WITHOUT_WORK}),
    "leaks-its-tests": frozenset({Fault.LEAKS}),
    "is-cleaned": frozenset(),
    "no-reward": frozenset({Fault.NO_REWARD}),
    "no-reward-on-no-op": frozenset({Fault.NO_REWARD}),
    "half-oracle": frozenset({Fault.ORACLE_FAILS}),
    "bad-manifest": frozenset({Fault.UNREADABLE}),
}
"""Each task, and its faults."""


def plant(folder: Path) -> Path:
    """Write the tasks into an empty folder. The flaky ones keep count beside it, as a test that depends on its machine does."""
    count = f"{folder.resolve()}/{{0}}.count"
    odd = f"n=$(cat {count} 2>/dev/null || echo 0); echo $((n + 1)) > {count}; [ $((n % 2)) = 0 ]"
    tasks: dict[str, dict[str, str]] = {
        "sound-script": SOUND,
        "sound-answer": {"task.toml": '[metadata.evener]\nexpected = "Paris"\nmatch = "contains"\n'},
        "sound-without-oracle": {"tests/test.sh": SUM + REWARD},
        "wrong-oracle": SOUND | {"solution/solve.sh": "echo 41 > answer.txt\n"},
        "wrong-answer-file": {"task.toml": '[metadata.evener]\nexpected = "7"\nmatch = "number"\n', "solution/answer.txt": "It is 8.\n"},
        "oracle-crashes": SOUND | {"solution/solve.sh": "no-such-program > answer.txt\n"},
        # It passes the oracle every second time: of its gradings, the first is.
        "flaky-test": SOUND | {"tests/test.sh": f"{SUM} && {{ {odd.format('flaky-test')}; }}{REWARD}"},
        "flaky-no-op": SOUND | {"tests/test.sh": f"{SUM} || {{ {odd.format('flaky-no-op')}; }}{REWARD}"},
        "passes-on-no-op": SOUND | {"tests/test.sh": f"true{REWARD}"},
        "empty-answer-passes": {
            "task.toml": '[metadata.evener]\ngrader = "weighted"\n[[metadata.evener.parts]]\ngrader = "fixed"\nreward = 1\n'
        },
        # The patch of its tests is in the environment already; once where the agent would find it, once where it is removed before.
        "leaks-its-tests": SOUND | LEAK | {"task.toml": '[metadata.evener.clean]\nremoved = ["/app/other.txt"]\n'},
        "is-cleaned": SOUND | LEAK | {"task.toml": '[metadata.evener.clean]\nremoved = ["/app/checks.txt"]\n'},
        "no-reward": SOUND | {"tests/test.sh": "no-such-program\n"},
        "no-reward-on-no-op": SOUND | {"tests/test.sh": f"set -e\n{SUM}{REWARD}".replace("echo $r", "[ $r = 1 ]; echo $r")},
        "half-oracle": SOUND | {"tests/test.sh": "[ -s answer.txt ] && r=0.5 || r=0\necho $r > /logs/verifier/reward.txt\n"},
        "bad-manifest": SOUND | {"task.toml": "[agent]\ntimeout_sec = -1\n"},
    }
    for task, files in tasks.items():
        for name, text in ({"instruction.md": "Write 6 times 7 to answer.txt.\n"} | files).items():
            path = folder / task / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!/bin/sh\n{text}" if name.endswith(".sh") else text)
    return folder
