# Checks the configuration of the running proxy by this version's rules, before any file of this version is installed. If
# it is invalid, the running version stays installed and can be restarted. The installed version's Python runs the check.
# Without it, check_tree is the check.
check_configuration() {
    [ -x "$tree/bin/python3" ] || return 0
    folder=$(mktemp -d)
    base64 -d >"$folder/check.pyz" <<'END'
@CHECK@
END
    main=0
    if systemd_runs; then
        main=$(systemctl show --property=MainPID --value runtimeproxy.service)
    fi
    found=0
    "$tree/bin/python3" -I "$folder/check.pyz" "${main:-0}" >&2 || found=$?
    rm -r "$folder"
    case $found in
    0) ;;
    3)
        report "version @VERSION@ would not start with this configuration, so it is not installed." \
            "Correct it, and install again. The installed version is unchanged and continues to run."
        return 1
        ;;
    *) report "the configuration could not be checked beforehand (exit code $found)" ;;
    esac
}
