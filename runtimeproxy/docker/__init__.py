"""The Docker front: HTTP/1.1 toward dockerd, held and edited message by message (design.md section 4)."""
