#!/bin/sh
# Runs a program in its own root, as this process: inside.sh TREE WORK SHARED PROGRAM [ARGUMENT...]
# TREE is a directory that stays unchanged, WORK an empty one, SHARED one with the same path inside. /tmp is noexec
# there, HOME is unset; the other mounts are the kernel's. Needs root.
set -eu
if [ -z "${INSIDE:-}" ]; then
    INSIDE=yes exec unshare --mount "$0" "$@" # mounts end with the process
fi
tree=$1 work=$2 shared=$3
shift 3
mount -t tmpfs -o mode=755 inside "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay -o "lowerdir=$tree,upperdir=$work/upper,workdir=$work/work" inside "$work/root"
cd "$work/root"
mkdir -p dev proc sys tmp
mount -t tmpfs -o mode=1777,noexec tmp tmp
for place in dev proc sys; do
    mount --rbind "/$place" "$place"
done
mkdir -p ".$shared"
mount --bind "$shared" ".$shared"
unset HOME INSIDE
exec chroot . "$@"
