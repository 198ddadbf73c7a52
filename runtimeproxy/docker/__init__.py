"""The Docker front: HTTP/1.1 toward dockerd, held and edited message by message (docs/architecture.rst)."""
