"""What ``runtimeproxy top`` shows: figures, how they look, and the terminal."""
