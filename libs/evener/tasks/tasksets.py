"""Tasksets of the package `verifiers` (version 1), where it is installed. Its types are its own: here they are Any."""

import importlib
import inspect
from typing import Any, Final

MODULE: Final = "verifiers.v1"
LOADERS: Final = "verifiers.v1.utils.loaders"
PACKAGE_NEEDED: Final = "it needs the packages `verifiers` and that of the taskset"


class TasksetMissing(Exception):
    """The package or the taskset cannot be loaded. The text says why."""


def taskset_named(name: str) -> Any:
    """Return a taskset by the name of its module. Raises TasksetMissing. Blocks: it imports what it names."""
    try:
        verifiers, loaders = importlib.import_module(MODULE), importlib.import_module(LOADERS)
        return loaders.load_taskset(verifiers.TasksetConfig(id=name))
    except Exception as cause:  # whatever that code does when it is imported
        msg = f"{type(cause).__name__}: {cause}"
        raise TasksetMissing(msg) from cause


def needs_runtime(task: Any) -> str | None:
    """Return the name of a reward that cannot be given without verifiers' own runtime, which would be left out silently. None: none."""
    for reward in task.hooks("reward"):
        runtime = inspect.signature(reward).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            return str(reward.__name__)
    return None


async def rewards_of(task: Any, answer: str) -> tuple[float, dict[str, float]]:
    """Return the weighted reward of an answer to a task, and each reward by name. Raises whatever the task's own code raises."""
    verifiers = importlib.import_module(MODULE)
    agent = verifiers.AgentInfo(config=verifiers.AgentConfig())
    trace = verifiers.Trace(task=verifiers.TraceTask(type=type(task).__name__, data=task.data), agent=agent, root_reply=answer)
    await task.score(trace)
    return float(trace.reward), {name: float(reward.score) for name, reward in trace.rewards.items() if reward is not None}
