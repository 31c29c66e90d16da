"""What this host can do: our own client against a server that does nothing but send prepared bytes on time."""
