"""The plan: file + environment + flags -> one frozen Plan; strict; all faults at once."""
