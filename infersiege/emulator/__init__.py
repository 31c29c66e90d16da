"""A fake engine on real sockets with a stated model of continuous batching. It shares no code with the client."""
