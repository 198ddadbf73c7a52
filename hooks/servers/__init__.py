"""The hook servers that come with the project, one file each."""
