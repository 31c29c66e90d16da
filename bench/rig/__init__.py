"""The server and client in C that bench and tests measure against."""
