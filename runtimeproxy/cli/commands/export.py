"""``runtimeproxy export``: serve the proxy's metrics, health and state over HTTP."""

import click

from runtimeproxy.cli.shared.flags import Command
from runtimeproxy.errors import ConfigError
from runtimeproxy.observe import logs
from runtimeproxy.settings.options import parse_endpoint

LISTEN = "127.0.0.1:9654"
METRICS_ENDPOINT = "/var/run/koord-runtimeproxy-metrics/metrics.sock"


@click.command("export", cls=Command, short_help="Serve the proxy's metrics over HTTP.")
@click.option(
    "--listen",
    metavar="ADDRESS:PORT|unix:PATH",
    default=LISTEN,
    help=f"Where to listen. A unix socket is for this user alone.  [default: {LISTEN}]",
)
@click.option(
    "--metrics-endpoint",
    metavar="SOCKET",
    default=METRICS_ENDPOINT,
    help=f"The proxy's --metrics-endpoint.  [default: {METRICS_ENDPOINT}]",
)
@click.option(
    "--admin-endpoint",
    metavar="SOCKET",
    help="The proxy's --admin-endpoint, as root: serve its configuration, hook servers, pods and events too.",
)
@click.option("--tls-cert", metavar="FILE", help="The certificate to serve with, in PEM form, with its chain.")
@click.option("--tls-key", metavar="FILE", help="The certificate's private key, in PEM form, not encrypted.")
@click.option("--client-ca", metavar="FILE", help="The authorities of the clients' certificates, in PEM form.")
def export_command(
    listen: str,
    metrics_endpoint: str,
    admin_endpoint: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    client_ca: str | None,
) -> int:
    """Serve GET /metrics, /livez and /readyz from the proxy's unix socket over HTTP, for Prometheus.

    The proxy itself has no network: this is a process of its own, and should not be root (deploy/systemd has a unit).
    An address that is not loopback needs the three flags of TLS; then only clients with a certificate are served.
    Certificates that are renewed are read again. If the proxy cannot be reached the answer is 502, if it takes more
    than 2 s 504.

    With --admin-endpoint, as root, it also serves /version, /configz, /hooks, /store and /events (docs/admin-api.yaml),
    over mutual TLS or a unix socket only.
    """
    from runtimeproxy.admin import exporter  # heavy: aiohttp.web, prometheus_client

    try:
        address = exporter.parse_address(listen)
        files = exporter.tls_files(address, tls_cert, tls_key, client_ca, everything=admin_endpoint is not None)
        if admin_endpoint is None:
            path = parse_endpoint(metrics_endpoint, "--metrics-endpoint")
        else:
            path = parse_endpoint(admin_endpoint, "--admin-endpoint")
        tls = exporter.Tls(files) if files else None
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    handler = logs.configure("info", "text")
    try:
        return exporter.run(address, path, tls, everything=admin_endpoint is not None)
    finally:
        handler.close()
