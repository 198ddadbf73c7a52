"""The commands of ``runtimeproxy`` by name."""

from runtimeproxy.cli.shared.flags import LazyGroup

PROGRAM = "runtimeproxy"
COMMANDS = {
    "run": "runtimeproxy.cli.commands.run:RUN",
    "config": "runtimeproxy.cli.commands.config:config_group",
    "kubelet-args": "runtimeproxy.cli.commands.kubelet_args:kubelet_args_command",
    "version": "runtimeproxy.cli.commands.program:version_command",
    "completion": "runtimeproxy.cli.commands.program:completion_command",
    "doctor": "runtimeproxy.cli.commands.doctor:doctor_command",
    "in-use": "runtimeproxy.cli.commands.doctor:in_use_command",
    "status": "runtimeproxy.cli.commands.status:status_command",
    "hook": "runtimeproxy.cli.commands.hook:HOOK",
    "events": "runtimeproxy.cli.commands.events:events_command",
    "store": "runtimeproxy.cli.commands.store:store_group",
    "explain": "runtimeproxy.cli.commands.explain:explain_command",
    "log-level": "runtimeproxy.cli.commands.status:log_level_command",
    "top": "runtimeproxy.cli.commands.top:top_command",
    "report": "runtimeproxy.cli.commands.report:report_command",
    "export": "runtimeproxy.cli.commands.export:export_command",
}


def command_group() -> LazyGroup:
    about = "A proxy between the kubelet and the container runtime that calls hook servers."
    return LazyGroup(None, COMMANDS, help=about)
