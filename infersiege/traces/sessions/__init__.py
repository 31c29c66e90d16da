"""What formats have in common when they make sessions: messages, lengths, lines of requests."""
