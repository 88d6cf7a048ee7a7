"""Plays a script: chooses the step that answers a call."""

import re
from collections import Counter

from evener.engines.scripted.prompt import Prompt
from evener.engines.scripted.script import Rule, Script, Step


class Player:
    """Counts calls, uses of rules, and the steps of conversations."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._calls = 0
        self._used: Counter[int] = Counter()
        self._played: Counter[tuple[int, str]] = Counter()

    def next_step(self, prompt: Prompt) -> Step | None:
        """Return the step that answers the next call. None: no rule answers."""
        self._calls += 1
        for index, rule in enumerate(self._script.rules):
            if (rule.times is None or self._used[index] < rule.times) and self._holds(rule, prompt):
                step = self._step(index, rule, prompt)
                if step is not None:
                    self._used[index] += 1
                    return step
        return self._script.default

    def _holds(self, rule: Rule, prompt: Prompt) -> bool:
        return (
            (rule.call is None or rule.call == self._calls)
            and (rule.match is None or rule.match in prompt.tail(rule.tail))
            and (rule.regex is None or re.search(rule.regex, prompt.tail(rule.tail)) is not None)
        )

    def _step(self, index: int, rule: Rule, prompt: Prompt) -> Step | None:
        if not rule.steps:
            return rule
        if rule.key is None:
            return rule.steps[prompt.answers] if prompt.answers < len(rule.steps) else None
        found = re.search(rule.key, prompt.text)
        if found is None:
            return None
        conversation = (index, found[1] if found.re.groups else found[0])
        at = self._played[conversation]
        if at == len(rule.steps):
            return None
        self._played[conversation] += 1
        return rule.steps[at]
