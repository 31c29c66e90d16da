"""What is in a trace, before it is run."""
