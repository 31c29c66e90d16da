"""Several runs of one plan, or of two in turn: what a comparison needs, since runs of the same thing differ."""
