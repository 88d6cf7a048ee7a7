"""The smallest harness: `evener record -- python examples/self_made/agent.py "Why is the sky blue?" "In one sentence."`."""

import json
import os
import sys
import urllib.request

url, key = os.environ["OPENAI_BASE_URL"] + "/chat/completions", os.environ["OPENAI_API_KEY"]
messages = []
for question in sys.argv[1:] or ["Who are you?"]:
    messages.append({"role": "user", "content": question})
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages, "max_tokens": 200}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:  # noqa: S310 - the URL is an argument
        messages.append(json.load(answer)["choices"][0]["message"])
    print(messages[-1]["content"])
