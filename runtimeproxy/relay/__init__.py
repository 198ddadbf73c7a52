"""The only transport code: sockets, and the bytes between them."""
