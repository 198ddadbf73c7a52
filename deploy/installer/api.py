"""The part of the Kubernetes API that the installer may use: its node, annotations, and the leases of its release.

Owns the requests and the pod's credentials.
Must not know: the purpose of annotations and leases.
Invariant: no log line or error contains the token.
"""

import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

ACCOUNT_PATH = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_SECONDS = 10.0
Object = dict[str, Any]


class ApiError(Exception):
    """The API server is unreachable, or refused a request."""


class Api:
    """The API server at ``url``. The token is read for each request, since the kubelet renews it."""

    def __init__(self, url: str, token: Path, tls: ssl.SSLContext | None) -> None:
        self._url = url
        self._token = token
        # HTTPS_PROXY of the environment does not apply to the API server.
        handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)]
        self._opener = urllib.request.build_opener(*handlers)

    def node(self, name: str) -> Object:
        """Return a node. Raises ApiError."""
        return self._send("GET", f"/api/v1/nodes/{name}")

    def annotate(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of a node, None to remove one. Raises ApiError."""
        patch = {"metadata": {"annotations": dict(annotations)}}
        self._send("PATCH", f"/api/v1/nodes/{name}", patch, "application/merge-patch+json")

    def lease(self, namespace: str, name: str) -> Object:
        """Return a lease. Raises ApiError."""
        code, answer = self._request("GET", _lease(namespace, name))
        if code == HTTPStatus.NOT_FOUND:
            why = f"there is no lease {name} in {namespace}, which the chart creates"
            raise ApiError(f"{why}: if it is missing for more than a minute, install the chart again")
        return _decoded(code, answer)

    def put_lease(self, namespace: str, lease: Object) -> bool:
        """Replace a lease unless it changed since it was read; return whether it was replaced. Raises ApiError."""
        code, answer = self._request("PUT", _lease(namespace, lease["metadata"]["name"]), lease)
        return code != HTTPStatus.CONFLICT and bool(_decoded(code, answer))

    def _send(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        return _decoded(*self._request(method, path, body, kind))

    def _request(
        self, method: str, path: str, body: Object | None = None, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        try:
            headers = {"Authorization": f"Bearer {self._token.read_text().strip()}", "Content-Type": kind}
            request = urllib.request.Request(self._url + path, data, headers, method=method)
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise ApiError(f"the API server cannot be reached: {getattr(reason, 'strerror', None) or reason}") from None


def in_cluster(account: Path = ACCOUNT_PATH) -> Api:
    """Return the API of the cluster that this pod is in. Raises ApiError."""
    try:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
    except (KeyError, OSError) as error:
        raise ApiError(f"this is no pod of a cluster: {error} is missing") from None
    return Api(f"https://{f'[{host}]' if ':' in host else host}:{port}", account / "token", tls)


def _lease(namespace: str, name: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"


def _decoded(code: int, answer: bytes) -> Object:
    try:
        content = json.loads(answer)
    except ValueError:
        content = {}
    if code >= HTTPStatus.BAD_REQUEST or not isinstance(content, dict):
        reported = content.get("message", "no message") if isinstance(content, dict) else "no JSON object"
        raise ApiError(f"the API server answers {code}: {reported}")
    return content
