"""One module per format (and what a larger one is made of): rows of a file -> sessions."""
