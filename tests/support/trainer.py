"""A trainer's logprobs, by transformers: run by the Python that has it. `trainer.py FOLDER [TEMPERATURE]`, ids as JSON on stdin."""

import json
import sys

import torch
from transformers import AutoModelForCausalLM

ids = torch.tensor([json.load(sys.stdin)])
temperature = float(sys.argv[2]) if sys.argv[2:] else 1.0
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
with torch.no_grad():
    logprobs = torch.log_softmax(model(ids).logits[0, :-1] / temperature, dim=-1)
sys.stdout.write(json.dumps(logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()))
