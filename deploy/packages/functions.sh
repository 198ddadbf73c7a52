# Functions of the scripts of the Debian package and of the RPM; the build inserts them into each.
root=${DPKG_ROOT:-} # dpkg sets it where it installs into a directory
tree=$root/usr/lib/runtimeproxy
registrations=$root/etc/runtime/hookserver.d

report() {
    printf 'runtimeproxy: %s\n' "$@" >&2
}

systemd_runs() {
    [ -d "$root/run/systemd/system" ]
}

serves() {
    systemctl --quiet is-active runtimeproxy.service
}

# The same check as check_configuration, by the installed tree: it also shows that the tree runs on this machine. The old
# process still runs.
check_tree() {
    if ! found=$("$tree/bin/runtimeproxy" config check 2>&1); then
        report "$found" "version @VERSION@ would not start, so nothing is restarted: a running proxy continues." \
            "Correct these errors, then configure the package again, or install the earlier version."
        return 1
    fi
}

# Hook servers continue with the old version: during a restart, the policy Fail refuses creates.
report_old_hook_servers() {
    if systemctl --quiet is-active 'runtimeproxy-hooks@*.service'; then
        report "hook servers still run the earlier version: systemctl restart 'runtimeproxy-hooks@*.service'"
    fi
}

# Called after a restart; $1 is yes if the service was active before.
require_service() {
    if [ "$1" = yes ] && ! serves; then
        report "version @VERSION@ does not start: journalctl -u runtimeproxy.service shows why. Clients wait at the socket." \
            "Install the earlier version again."
        return 1
    fi
}

report_next_step() {
    if serves; then
        report "the proxy runs and listens, and nothing uses it yet. The next step:" \
            "    runtimeproxy kubelet-args --kube-version=VERSION" \
            "prints how to point a kubelet at it, and how to undo that. /etc/runtimeproxy/config.yaml configures it."
    else
        report "the proxy does not run: systemctl status runtimeproxy.service shows why"
    fi
}

report_not_started() {
    report "systemd does not run here, so nothing was started: the proxy starts when systemd boots this system." \
        "Without systemd, start it by hand: /usr/bin/koord-runtime-proxy"
}

refuse_while_used() {
    if [ "${FORCE_RUNTIMEPROXY_REMOVAL:-}" = 1 ]; then
        return 0
    fi
    if ! found=$("$tree/bin/runtimeproxy" in-use --no-headers 2>&1); then
        report "$found" "it is not removed while a client uses it: the node would become NotReady." \
            "Point the kubelet or cri-dockerd at the runtime first, and restart it; this prints how:" \
            "    runtimeproxy kubelet-args --kube-version=VERSION" \
            "To remove it anyway, set FORCE_RUNTIMEPROXY_REMOVAL=1 in the environment."
        return 1
    fi
}

# Hook servers of the package end with it. Under the policy Fail their registrations would stay, and a later proxy would
# refuse every create. Files of the package have the names of its hooks and a socket of its directory.
remove_hook_servers() {
    if systemd_runs; then
        systemctl stop 'runtimeproxy-hooks@*.service'
    fi
    for file in "$registrations"/*.json; do
        ours=yes
        for name in $(basename "$file" .json | sed 's/^[0-9][0-9]-//; s/-/ /g'); do
            case " @HOOKS@ all " in *" $name "*) ;; *) ours=no ;; esac
        done
        if [ $ours = yes ] && grep -qs '"remote-endpoint": *"[^"]*/run/runtimeproxy-hooks/' "$file"; then
            rm "$file"
        fi
    done
}

# Removes all files that the proxy created. Registrations and sockets of other programs stay.
remove_all() {
    rm -rf "$root/var/lib/runtimeproxy" "$root/run/koord-runtimeproxy" "$root/run/koord-runtimeproxy-metrics" \
        "$root/run/runtimeproxy" "$root/etc/runtimeproxy"
    grep -qs /run/runtimeproxy-hooks/ "$registrations"/*.json || rm -rf "$root/run/runtimeproxy-hooks"
    rm -f "$root"/etc/systemd/system/*.wants/runtimeproxy-hooks@*.service
    rmdir "$registrations" "$root/etc/runtime" 2>/dev/null || true
    if getent group runtimeproxy-metrics >/dev/null; then
        groupdel runtimeproxy-metrics || report "the group runtimeproxy-metrics stays: it is a user's primary group"
    fi
}
