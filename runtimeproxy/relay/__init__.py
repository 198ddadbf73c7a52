"""The only transport code: sockets, and bytes between them."""
