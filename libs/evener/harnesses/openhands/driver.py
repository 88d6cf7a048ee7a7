"""One headless OpenHands conversation: `python driver.py INSTRUCTION_FILE`, in the directory to work in.

This runs inside the bundle and knows nothing of Evener. It finds its model by OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, and the
model's limits by OPENHANDS_CONTEXT_TOKENS and OPENHANDS_ANSWER_TOKENS.
"""

import os
import sys
from pathlib import Path

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.sdk.context.condenser import LLMSummarizingCondenser
from openhands.sdk.conversation.state import ConversationExecutionStatus
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool

ENDED = (ConversationExecutionStatus.FINISHED, ConversationExecutionStatus.STUCK)
"""The statuses that count as finished. STUCK means that the model repeats itself, which is its own work and not a failure of the
program."""

ANY_SIZE = 1_000_000
"""The limit of events in the history, set so high that only tokens, or a call refused for its length, trigger a summary."""
KEPT_FIRST = 4
"""The number of first events that a summary keeps, as OpenHands's own agent does: its prompt, the instruction, the first turn."""


def limit(name: str) -> int | None:
    """Return a number from the environment."""
    value = os.environ.get(name)
    return int(value) if value else None


def main() -> None:
    """Give the instruction to an agent with a terminal and an editor, and wait until it has finished."""
    llm = LLM(
        model=f"openai/{os.environ['OPENAI_MODEL']}",
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        usage_id="agent",
        max_input_tokens=limit("OPENHANDS_CONTEXT_TOKENS"),
        max_output_tokens=limit("OPENHANDS_ANSWER_TOKENS"),
        timeout=None,
    )
    # tmux, where there is one, would outlive the conversation
    tools = [Tool(name=TerminalTool.name, params={"terminal_type": "subprocess"}), Tool(name=FileEditorTool.name)]
    condenser = LLMSummarizingCondenser(llm=llm, max_size=ANY_SIZE, keep_first=KEPT_FIRST)
    agent = Agent(llm=llm, tools=tools, condenser=condenser)
    conversation = Conversation(agent=agent, workspace=Path.cwd(), visualizer=None)
    try:
        conversation.send_message(Path(sys.argv[1]).read_text())
        conversation.run()
        status = conversation.state.execution_status
    finally:
        conversation.close()
    if status not in ENDED:
        sys.exit(f"the conversation ended as {status.value}")


main()
