"""Requests for tests: two that pass, three that may be held, two that may become tunnels."""

from tests.docker.messages import ID, UPGRADE, request

PING = request("GET", "/_ping")
INFO = request("GET", "/v1.41/info")
CREATE = request("POST", "/v1.41/containers/create?name=box", "Content-Type: application/json", body=b'{"Image":"i"}')
START = request("POST", f"/v1.41/containers/{ID}/start")
STOP = request("POST", f"/v1.41/containers/{ID}/stop?t=10", body=b"")
ATTACH = request("POST", f"/v1.41/containers/{ID}/attach?stream=1", *UPGRADE)
EXEC = request("POST", f"/v1.41/exec/{ID}/start", "Content-Type: application/json", body=b'{"Detach":false}')
