"""Tokenizers and chat templates: canonical messages to ids, sampled ids to messages."""
