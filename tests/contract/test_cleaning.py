"""Clean environments: no backend lets an agent find in its sandbox what the base commit of its repository does not reach."""

import abc
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from msgspec import structs
from tests.contract.test_sandboxes import configured, files_in, ran, sh
from tests.support.swe_rows import BUGGY, FIXED, git

from evener.graders.validation import Fault, Validator
from evener.proto.sandbox import ImageBuild, SandboxSpec
from evener.sandboxes.bubblewrap import open_bubblewrap
from evener.sandboxes.cleaning import Unclean, clean, leaks
from evener.sandboxes.config import BubblewrapConfig
from evener.sandboxes.docker import open_docker_sandboxes
from evener.sandboxes.local import open_local
from evener.sandboxes.port import TEMPORARY, ChangeLimits, Sandbox, Sandboxes
from evener.tasks.tables import Cleaning, HistoryKept

SPEC = SandboxSpec(workdir="/testbed")
REPOSITORY = Cleaning(repositories=("/testbed",))
MARK = "THE FIX"
REWARD = "[ $? = 0 ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"


def open_to_all(folder: Path) -> None:
    subprocess.run(("chmod", "-R", "a+rwX", str(folder)), check=True)


def made(folder: Path) -> tuple[Path, str]:
    """Return a repository whose fix is hidden in every place that git has, and the id of its base commit."""
    repository, elsewhere = folder / "repository", folder / "elsewhere"
    repository.mkdir()
    git(repository, "init", "-q")
    (repository / "calc.py").write_text(BUGGY)
    (repository / "pkg").mkdir()
    (repository / "pkg" / "given.txt").write_text("given")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "First")
    (repository / "pkg" / "given.txt").write_text("given again")
    git(repository, "commit", "-qam", "Base")
    base = git(repository, "rev-parse", "HEAD").strip()

    def fixed(where: str) -> None:
        (repository / "calc.py").write_text(f"{FIXED}# {MARK}: {where}\n")
        git(repository, "commit", "-qam", f"{MARK} on {where}")

    fixed("main")  # left by a reset: in reflogs and as loose objects
    git(repository, "reset", "-q", "--hard", base)
    git(repository, "checkout", "-q", "-b", "future")
    fixed("a branch")
    git(repository, "tag", "-a", "v2", "-m", MARK)
    git(repository, "notes", "add", "-m", MARK, base)
    git(repository, "checkout", "-q", "main")
    (repository / "calc.py").write_text(f"# {MARK}: stash\n")
    git(repository, "stash", "-q")
    git(repository, "clone", "-q", "--bare", str(repository), str(elsewhere))
    git(repository, "remote", "add", "origin", str(elsewhere))
    git(repository, "fetch", "-q", "origin")
    git(repository, "worktree", "add", "-q", str(folder / "tree"), "future")
    git(repository, "replace", "future", base)
    (repository / "calc.py").write_text(f"# {MARK}: index\n")
    git(repository, "add", "calc.py")  # staged, and in the index alone
    git(repository, "gc", "-q")
    (repository / "calc.py").write_text(BUGGY)
    (repository / "fix.txt").write_text(MARK)
    (repository / ".git" / "FETCH_HEAD").write_text(git(repository, "hash-object", "-w", "fix.txt"))
    (repository / "fix.txt").unlink()
    (repository / "pkg" / "__pycache__").mkdir()
    (repository / "pkg" / "__pycache__" / "calc.cpython-311.pyc").write_bytes(MARK.encode())
    open_to_all(repository)
    folder.chmod(0o777)
    return repository, base


LOOK = """
for object in $(git cat-file --batch-all-objects --batch-check='%(objectname)'); do git cat-file -p $object; done | grep -ac 'THE FIX'
git fsck --unreachable --no-reflogs --no-progress 2>&1; git for-each-ref; git stash list; git reflog; git remote; git worktree list | wc -l
"""
"""How many lines of all objects have the fix, and whatever else git knows."""


class CleaningContract(abc.ABC):
    @abc.abstractmethod
    def opened(self, root: Path, docker_host: str) -> AbstractAsyncContextManager[Sandboxes]: ...

    @pytest.fixture
    def host(self) -> str:
        return ""

    @pytest.fixture
    async def sandboxes(self, tmp_path: Path, host: str) -> AsyncIterator[Sandboxes]:
        async with self.opened(tmp_path / "sandboxes", host) as sandboxes:
            yield sandboxes

    async def asked(self, sandbox: Sandbox, script: str) -> str:
        safe = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        return (await ran(sandbox, sh(script, **safe)))[1].strip()

    async def test_history_is_what_the_base_commit_reaches(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        """Branches, tags, notes, stashes, reflogs, remotes, worktrees, replacements, the index, packs and loose objects: all gone."""
        repository, base = made(tmp_path)
        async with sandboxes.open("s", SPEC) as sandbox:
            await sandbox.bring(repository, "/testbed")
            assert int((await self.asked(sandbox, LOOK)).split()[0]) >= 4
            found = await leaks(sandbox, REPOSITORY, {})
            assert any("objects that its commit does not reach" in leak for leak in found)
            assert any("__pycache__ was left by a program" in leak for leak in found)

            await clean(sandbox, REPOSITORY)

            assert await leaks(sandbox, REPOSITORY, {}) == ()
            assert (await self.asked(sandbox, LOOK)).splitlines() == ["0", f"{base} commit\trefs/heads/main", "1"]
            assert await self.asked(sandbox, "git log --format=%s; git status --porcelain") == "Base\nFirst"
            own = "git -c user.name=a -c user.email=b commit -q --allow-empty -m Own && git log -1 --format=%s"
            assert await self.asked(sandbox, own) == "Own"

    async def test_cleaning_is_no_change_of_the_agents(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        repository, _ = made(tmp_path)
        async with sandboxes.open("s", SPEC) as sandbox:
            await sandbox.bring(repository, "/testbed")
            await clean(sandbox, REPOSITORY)
            await sandbox.settle()
            await self.asked(sandbox, "echo 1 > new.txt; cat .git/HEAD")
            changes = await sandbox.changes(ChangeLimits())

        assert (files_in(changes), changes.removed) == ({"testbed/new.txt": "1\n"}, ())

    async def test_commit_that_has_its_solution_in_its_parents_stands_alone(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        repository, _ = made(tmp_path)
        async with sandboxes.open("s", SPEC) as sandbox:
            await sandbox.bring(repository, "/testbed")
            await clean(sandbox, Cleaning(repositories=("/testbed",), history=HistoryKept.NONE))

            told = await self.asked(sandbox, "git log --format=%s; git status --porcelain; git show HEAD:pkg/given.txt")
            assert told == "base\ngiven again"

    async def test_what_the_task_names_is_removed(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        repository, _ = made(tmp_path)
        wanted = Cleaning(removed=("/testbed/pkg", "/testbed/.git", "/testbed/no-such-file"))
        async with sandboxes.open("s", SPEC) as sandbox:
            await sandbox.bring(repository, "/testbed")
            assert await leaks(sandbox, wanted, {}) == ("/testbed/pkg is there", "/testbed/.git is there")
            await clean(sandbox, wanted)

            assert await leaks(sandbox, wanted, {}) == ()
            assert await self.asked(sandbox, "ls") == "calc.py"

    async def test_detached_commit_stays_detached(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        repository, base = made(tmp_path)
        git(repository, "checkout", "-q", "--detach", "HEAD~1")
        open_to_all(repository)
        async with sandboxes.open("s", SPEC) as sandbox:
            await sandbox.bring(repository, "/testbed")
            await clean(sandbox, REPOSITORY)

            assert await leaks(sandbox, REPOSITORY, {}) == ()
            told = await self.asked(
                sandbox, f"git symbolic-ref -q HEAD; git log --format=%s; git cat-file -e {base} 2>/dev/null || echo gone"
            )
            assert told.startswith("First\n")
            assert told.endswith("\ngone")

    async def test_tests_and_solution_that_are_there_already_are_found(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        """Patches that are applied, files in the grader's places, another copy of the repository, a cache of packages."""
        repository, base = made(tmp_path)
        gold = git(repository, "--no-replace-objects", "diff", base, "future", "--", "calc.py")
        git(repository, "--no-replace-objects", "reset", "-q", "--hard", "future")
        open_to_all(repository)
        async with sandboxes.open("s", SPEC) as sandbox:
            await sandbox.bring(repository, "/testbed")
            await sandbox.bring(repository / "pkg", "/tests")
            await sandbox.write({"/home/agent/.cache/pip/calc-2.0.whl": b"x"})
            await self.asked(sandbox, f"git clone -q --bare . {sandbox.inside(TEMPORARY)}/copy.git")
            found = await leaks(sandbox, REPOSITORY, {"solution/gold.patch": gold.encode()})

        assert "/testbed has the changes of solution/gold.patch already" in found
        assert "/tests is not empty" in found
        assert f"{TEMPORARY}/copy.git is another repository with the same commit" in found
        assert "/home/agent/.cache/pip is there" in found

    async def test_history_that_cannot_be_cut_is_refused_by_name(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        repository, _ = made(tmp_path)
        async with sandboxes.open("s", SPEC) as sandbox:
            with pytest.raises(Unclean, match=r"testbed is no repository"):
                await clean(sandbox, REPOSITORY)
            await sandbox.bring(repository, "/testbed")
            await self.asked(sandbox, "rm -r .git/objects/pack")
            with pytest.raises(Unclean, match=r"testbed has no commit|is not all there"):
                await clean(sandbox, REPOSITORY)


class TestLocalCleaning(CleaningContract):
    def opened(self, root: Path, docker_host: str) -> AbstractAsyncContextManager[Sandboxes]:  # noqa: ARG002 - it is for others
        return open_local(root)


class TestBubblewrapCleaning(CleaningContract):
    def opened(self, root: Path, docker_host: str) -> AbstractAsyncContextManager[Sandboxes]:  # noqa: ARG002 - it is for others
        return open_bubblewrap(root, BubblewrapConfig())


@pytest.mark.docker
class TestDockerCleaning(CleaningContract):
    @pytest.fixture
    def host(self, docker_host: str) -> str:
        return docker_host

    def opened(self, root: Path, docker_host: str) -> AbstractAsyncContextManager[Sandboxes]:
        return open_docker_sandboxes(root, configured(docker_host))

    async def test_image_without_git_is_refused_by_name(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        repository, _ = made(tmp_path)
        context = tmp_path / "environment"
        context.mkdir()
        (context / "Dockerfile").write_text("FROM evener-base\nRUN rm -f $(command -v git)\n")
        async with sandboxes.open("s", structs.replace(SPEC, image=ImageBuild(context=str(context)))) as sandbox:
            await sandbox.bring(repository, "/testbed")
            with pytest.raises(Unclean, match="there is no git, with which the history of /testbed would be cut"):
                await clean(sandbox, REPOSITORY)

    @pytest.mark.parametrize("copies", [False, True], ids=["clean", "with a copy elsewhere"])
    async def test_repository_task_with_a_history_is_validated(self, sandboxes: Sandboxes, tmp_path: Path, *, copies: bool) -> None:
        """Its image holds the fix in its history, which the agent's sandbox does not have, and the tests' sandbox does."""
        repository, base = made(tmp_path)
        gold = git(repository, "--no-replace-objects", "diff", base, "future", "--", "calc.py")
        git(repository, "bundle", "create", str(tmp_path / "all.bundle"), "future", "main")
        copy = "RUN git clone -q --bare all.bundle /srv/copy.git\n" if copies else ""
        task = tmp_path / "task"
        check = f'cd /testbed; git cat-file -e future && python3 -c "import calc; assert calc.add(2, 3) == 5"\n{REWARD}'
        look = "cd /testbed && ! git log --all | grep FIX"
        files = {
            "instruction.md": "Mend add().",
            "task.toml": '[environment]\nworkdir = "/testbed"\n[metadata.evener.clean]\nrepositories = ["/testbed"]\n',
            "environment/Dockerfile": (
                "FROM evener-base\nCOPY all.bundle /srv/\nWORKDIR /srv\nRUN git clone -q -b main all.bundle /testbed && cd /testbed && "
                f"git branch -q future origin/future\n{copy}RUN rm all.bundle\nWORKDIR /testbed\n"
            ),
            "tests/test.sh": f"#!/bin/sh\nexport GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'\n{check}",
            "solution/gold.patch": gold,
            "solution/solve.sh": f"#!/bin/sh\nhere=$(dirname $0)\n{look} && git apply $here/gold.patch\n",
        }
        for name, text in files.items():
            (task / name).parent.mkdir(parents=True, exist_ok=True)
            (task / name).write_text(text)
        (tmp_path / "all.bundle").rename(task / "environment" / "all.bundle")
        verdict = await Validator({"docker": sandboxes}).validate(task, "docker")

        assert [[trial.reward for trial in trials] for trials in (verdict.oracle, verdict.no_op)] == [[1.0, 1.0], [0.0, 0.0]], (
            verdict.detail
        )
        assert verdict.faults == ((Fault.LEAKS,) if copies else ())
        assert verdict.leaks == (("/srv/copy.git is another repository with the same commit",) if copies else ())
