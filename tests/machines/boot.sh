#!/bin/sh
# Boots a machine, and ends it when standard input closes, also after kill -9 of the process at its other end.
#   boot.sh NAME TREE OVERLAY WORK [SOURCE:PLACE ...]
# NAME is its cgroup in each hierarchy, with NAME-outer next to it for processes that enter the machine. TREE is its
# read-only root, OVERLAY "" or a lower layer of its /usr, WORK an empty directory; then read-only bind mounts.
# Writes the id of the machine's process 1 to standard output. All mounts are in the machine's own namespace.
set -eu
name=$1 tree=$2 overlay=$3 work=$4
shift 4

# Each cgroup mount of this machine, on v1, v2 and hybrid ones: type, options, place.
hierarchies() {
    sed -n 's|^[^ ]* [^ ]* [^ ]* [^ ]* \([^ ]*\) .* - \(cgroup2\?\) [^ ]* \(.*\)$|\2 \3 \1|p' /proc/self/mountinfo
}

# Moves this process into a cgroup of each hierarchy.
join() {
    for place in $(hierarchies | cut -d ' ' -f 3); do echo 0 >"$place/$1/cgroup.procs"; done
}

inside() {
    read -r pid _ </proc/self/stat # of the machine's process 1, in the outer /proc
    cgroups=$(hierarchies)
    # Writes are in memory, and end with the namespace.
    mount -t tmpfs -o mode=755 machine "$work"
    mkdir "$work/upper" "$work/work" "$work/root" "$work/lib"
    mount -t overlay -o "lowerdir=$tree,upperdir=$work/upper,workdir=$work/work" machine "$work/root"
    if [ "$overlay" ]; then
        mkdir "$work/programs" "$work/working"
        mount -t overlay -o "lowerdir=$tree/usr:$overlay,upperdir=$work/programs,workdir=$work/working" machine \
            "$work/root/usr"
        rm -f "$work/root/usr/sbin/policy-rc.d" # a rule of the host against starting services
    fi
    cd "$work/root"
    mount -t proc proc proc
    mount --bind proc/sys proc/sys
    mount -o remount,bind,ro proc/sys # only network sysctls are per namespace
    mount --bind proc/sys/net proc/sys/net
    mount -o remount,bind,rw proc/sys/net
    mount -t sysfs -o ro sysfs sys
    echo "$cgroups" | while read -r type options place; do
        [ "$place" = /sys/fs/cgroup ] || mountpoint -q sys/fs/cgroup || mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
        mkdir -p ".$place"
        mount -t "$type" -o "$options" cgroup ".$place"
    done
    mount -t tmpfs -o mode=755 dev dev
    mkdir dev/pts dev/shm dev/mqueue
    for node in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "dev/${node%:*}" c 1 "${node#*:}"; done
    mknod -m 666 dev/tty c 5 0
    mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    mount -t tmpfs -o mode=1777 shm dev/shm
    mount -t tmpfs -o mode=755 run run
    mount -t tmpfs -o mode=1777 tmp tmp
    # The engines' layers: an overlay takes no overlay as its upper directory.
    for engine in containerd docker; do
        mkdir -p "$work/lib/$engine" "var/lib/$engine"
        mount --bind "$work/lib/$engine" "var/lib/$engine"
    done
    for bind in "$@"; do
        place=.${bind#*:}
        if [ -d "${bind%%:*}" ]; then mkdir -p "$place"; else mkdir -p "${place%/*}" && : >"$place"; fi
        mount --rbind "${bind%%:*}" "$place"
        mount -o remount,bind,ro "$place"
    done
    echo machine >etc/hostname
    pivot_root . mnt
    echo "$pid"
    exec >/dev/null 2>&1 </dev/null
    # In a container systemd expects its parent to share the mounts; credentials and the kubelet need that.
    exec env -i container=machine PATH=/usr/sbin:/usr/bin LANG=C.UTF-8 chroot . \
        sh -c 'umount -l /mnt && mount --make-rshared / && exec /lib/systemd/systemd --unit=multi-user.target'
}

case "${MACHINE_STAGE:-}" in
outer) # In version 2 a cgroup with processes gives its children no controller, so unshare must leave it.
    join "$name-outer"
    MACHINE_STAGE=inside exec unshare --uts --ipc --net --pid --fork --kill-child "$0" "$name" "$tree" "$overlay" \
        "$work" "$@"
    ;;
inside)
    join "$name"
    inside "$@"
    ;;
esac

# Fails if a cgroup is busy, as for a moment after its last process.
remove() {
    hierarchies | while read -r _ _ place; do
        for group in "$place/$name" "$place/$name-outer"; do
            [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + || exit 1
        done
    done
}

hierarchies | while read -r type _ place; do
    mkdir "$place/$name" "$place/$name-outer"
    if [ "$type" = cgroup2 ]; then
        for controller in $(cat "$place/cgroup.controllers"); do
            echo "+$controller" >"$place/cgroup.subtree_control" || true # as far as the host allows
        done
    elif [ -e "$place/cpuset.cpus" ]; then
        for group in "$name" "$name-outer"; do
            cat "$place/cpuset.cpus" >"$place/$group/cpuset.cpus"
            cat "$place/cpuset.mems" >"$place/$group/cpuset.mems"
        done
    fi
done
(
    join "$name" # the root of the machine's view
    MACHINE_STAGE=outer exec unshare --mount --cgroup "$0" "$name" "$tree" "$overlay" "$work" "$@" </dev/null
) &
machine=$!
exec >/dev/null # its reader sees the end of the machine
cat >/dev/null
# With process 1 all processes of the machine end, and then unshare.
first=$(cat "/proc/$machine/task/$machine/children" 2>/dev/null || true)
kill -9 ${first:-$machine} 2>/dev/null || true
wait "$machine" 2>/dev/null || true
for _ in 1 2 3 4 5 6 7 8 9 10; do
    remove 2>/dev/null && exit 0
    sleep 0.2
done
remove
