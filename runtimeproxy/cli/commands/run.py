"""``runtimeproxy run``: read the configuration, set up the log, hand over to the application."""

import logging

import click

from runtimeproxy.cli.shared.configuration import command_configuration
from runtimeproxy.cli.shared.flags import Command, option_flags
from runtimeproxy.cli.shared.output import FAILED, error_text
from runtimeproxy.errors import ConfigError
from runtimeproxy.observe import logs
from runtimeproxy.settings.imports import import_or_exit
from runtimeproxy.settings.options import ENVIRONMENT_PREFIX, OPTIONS, SOCKET_FORMS

_EPILOG = (
    f"Each flag has an environment variable ({ENVIRONMENT_PREFIX} and its name in capitals with _) and a key of its "
    "own name in the YAML file. Flags override the environment, which overrides the file. A SOCKET is spelt "
    f"{SOCKET_FORMS}; a DURATION 500ms, 2s, 1m or a number of seconds."
)
_logger = logging.getLogger(__name__)


def run_command() -> click.Command:
    help_text = "Listen for the kubelet, pass its calls to the runtime, and call the registered hook servers."
    return Command(
        "run", params=option_flags(OPTIONS), callback=_run, help=help_text, short_help="Run the proxy.", epilog=_EPILOG
    )


def _run(**given: str | None) -> int:
    settings = command_configuration(given)
    handler = logs.configure(settings.log_level, settings.log_format)
    try:
        for line in settings.warnings:
            _logger.warning("%s", line, extra={"kind": line})
        import_or_exit("runtimeproxy.app")  # heavy: the event loop, the readers, the hook protocol
        from runtimeproxy import app

        return app.run(settings)
    except Exception as error:
        if not isinstance(error, ConfigError):
            _logger.debug("Running failed", exc_info=True)
            error.add_note("--log-level=debug logs the traceback")
        if settings.log_format != "json":
            raise
        _logger.error("%s", error_text(error))  # stderr is read as JSON
        return FAILED
    finally:
        handler.close()


RUN = run_command()
