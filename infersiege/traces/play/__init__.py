"""A session in play: which messages each request holds."""
