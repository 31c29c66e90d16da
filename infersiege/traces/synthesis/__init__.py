"""Text for what is known only by length and identity."""
