#!/bin/sh
# Starts @NAME@ with the Python and the libraries of this tree, as this process. The loader's name is the program's.
self=$0
if [ -L "$self" ]; then
    if ! command -v readlink >/dev/null; then
        echo "@NAME@: error: $0 is a symbolic link, and there is no readlink to follow it: call the program itself" >&2
        exit 2
    fi
    self=$(readlink -f "$self")
fi
# With CDPATH set cd would look elsewhere, and print what it found.
case $self in
*/*) root=$(CDPATH='' cd "${self%/*}/.." && pwd -P) ;;
*) root=$(cd .. && pwd -P) ;;
esac
# A locale is a file of the node's own C library, made for another one than this tree's. Python then works in UTF-8.
export LC_ALL=C
exec "$root/libexec/@NAME@" --inhibit-cache --argv0 "$root/bin/python3" --library-path "$root/lib" "$root/lib/python3" @ARGUMENTS@"$@"
