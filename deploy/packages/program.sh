#!/bin/sh
# Replaces this process by @NAME@, with the Python and the libraries of this tree. The loader has the program's name.
self=$0
if [ -L "$self" ]; then
    if ! command -v readlink >/dev/null; then
        echo "@NAME@: error: $0 is a symbolic link, and there is no readlink to follow it: call the program itself" >&2
        exit 2
    fi
    self=$(readlink -f "$self")
fi
# With CDPATH set, cd would search other directories and print its result.
case $self in
*/*) root=$(CDPATH='' cd "${self%/*}/.." && pwd -P) ;;
*) root=$(cd .. && pwd -P) ;;
esac
# The node's locale files belong to its own C library, not to that of this tree. Python then uses UTF-8.
export LC_ALL=C
exec "$root/libexec/@NAME@" --inhibit-cache --argv0 "$root/bin/python3" --library-path "$root/lib" "$root/lib/python3" @ARGUMENTS@"$@"
