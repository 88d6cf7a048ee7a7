#!/bin/sh
# Pi against a recording: evener record -- sh examples/pi.sh -p "What is in this folder?"
# Without -p it is the Pi that you know, on your terminal. It needs Node 22.19 or later and: npm install -g @earendil-works/pi-coding-agent@0.87.1
# Pi keeps 4096 tokens of the contextWindow free: so much more than the model has is right.
set -eu
PI_CODING_AGENT_DIR=$(mktemp -d)
export PI_CODING_AGENT_DIR PI_OFFLINE=1
trap 'rm -rf "$PI_CODING_AGENT_DIR"' EXIT
cat > "$PI_CODING_AGENT_DIR/models.json" << END
{"providers": {"evener": {"baseUrl": "$OPENAI_BASE_URL", "apiKey": "$OPENAI_API_KEY", "api": "openai-completions",
  "models": [{"id": "$OPENAI_MODEL", "name": "$OPENAI_MODEL", "reasoning": false, "input": ["text"],
    "contextWindow": 8192, "maxTokens": 512, "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}}]}}}
END
pi --provider evener --model "$OPENAI_MODEL" --no-session "$@"
