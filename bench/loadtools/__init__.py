"""Load tools for LLM servers as users run them, each in an environment of its own: see bench/tools.py."""
