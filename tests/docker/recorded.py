"""What clients were recorded to send to dockerd: the docker CLI 28 to Engine 20.10, cri-dockerd to Engine 26.

Owns the method, target and fields of each request, with other ids; Host and User-Agent are the same in all of a client.
Must not know: who reads them.
Invariant: the order and the spelling of the fields are the recorded ones, each body has a length of its kind.
"""

from tests.docker.peer import ID, head

_WORDS = {
    "{id}": ID,
    "{json}": "Content-Length: 23|Content-Type: application/json",
    "{length}": "Content-Length: 23",
    "{none}": "Content-Length: 0",
    "{upgrade}": "Connection: Upgrade",
    "{tcp}": "Upgrade: tcp",
    "{chunked}": "Transfer-Encoding: chunked",
    "{text}": "Content-Type: text/plain",
    "{tar}": "Content-Type: application/x-tar",
    "{containers}": "%2C%22label%22%3A%7B%22io.kubernetes.docker.type%3Dcontainer%22%3Atrue%7D%7D",
}
_BODY = b'{"recorded":"not this"}'
_CHUNKS = b"17\r\n" + _BODY + b"\r\n0\r\n\r\n"

DOCKER_CLI = """
    HEAD /_ping
    POST /v1.41/containers/create|{json}
    POST /v1.41/containers/{id}/attach?stderr=1&stdout=1&stream=1|{none}|{upgrade}|{text}|{tcp}
    POST /v1.41/containers/{id}/wait?condition=removed|{none}
    POST /v1.41/containers/{id}/start|{none}
    POST /v1.41/containers/{id}/attach?stderr=1&stdin=1&stdout=1&stream=1|{none}|{upgrade}|{text}|{tcp}
    POST /v1.41/containers/create?name=c1|{json}
    POST /v1.41/containers/{id}/wait?condition=next-exit|{none}
    GET /v1.41/containers/c1/json
    POST /v1.41/containers/c1/exec|{json}
    POST /v1.41/exec/{id}/start|{length}|{upgrade}|Content-Type: application/json|{tcp}
    GET /v1.41/exec/{id}/json
    POST /v1.41/containers/c1/update|{json}
    HEAD /v1.41/containers/c1/archive?path=%2Froot%2Fh
    PUT /v1.41/containers/c1/archive?noOverwriteDirNonDir=true&path=%2Froot|{chunked}|Content-Type: text/plain
    GET /v1.41/containers/c1/archive?path=%2Fetc%2Fpasswd
    GET /v1.41/containers/{id}/logs?stderr=1&stdout=1&tail=all
    POST /v1.41/containers/c1/stop?t=0|{none}
    POST /v1.41/containers/c1/start|{none}
    POST /v1.41/containers/c1/rename?name=c2|{none}
    POST /v1.41/containers/c2/kill|{none}
    DELETE /v1.41/containers/c2?force=1
    GET /v1.41/containers/json?all=1
    GET /v1.41/info
    GET /v1.41/events?since=1795232193
    POST /v1.41/build?dockerfile=Dockerfile&q=1&version=1|{chunked}|{tar}|X-Registry-Config: e30=
    GET /v1.41/volumes
"""

CRI_DOCKERD = """
    GET /v1.45/images/127.0.0.1:5000/pause:1/json
    POST /v1.45/containers/create?name=k8s_POD_web-0_default_uid_0|{json}
    POST /v1.45/containers/{id}/start|{none}
    GET /v1.45/containers/{id}/json
    POST /v1.45/containers/create?name=k8s_main_web-0_default_uid_2|{json}
    POST /v1.45/containers/{id}/exec|{json}
    POST /v1.45/exec/{id}/start|{length}|{upgrade}|Content-Type: application/json|{tcp}
    GET /v1.45/exec/{id}/json
    POST /v1.45/containers/{id}/update|{json}
    GET /v1.45/containers/json?all=1&filters=%7B%22id%22%3A%7B%22{id}%22%3Atrue%7D{containers}
    GET /v1.45/containers/{id}/stats?one-shot=1&stream=0
    GET /v1.45/containers/{id}/json?size=1
    GET /v1.45/images/sha256:{id}/json
    POST /v1.45/containers/{id}/stop?t=1|{none}
    DELETE /v1.45/containers/{id}?force=1&v=1
    POST /v1.45/containers/{id}/stop?t=10|{none}
    GET /v1.45/containers/json?all=1&filters=%7B%22label%22%3A%7B%22io.kubernetes.sandbox.id%3D{id}%22%3Atrue%7D%7D
    GET /v1.45/images/json?all=1&shared-size=1
    GET /v1.45/images/json
"""


def requests(recorded: str, agent: str) -> list[bytes]:
    """Return the requests of a table, with bodies."""
    return [_request(line.strip(), agent) for line in recorded.strip().splitlines()]


def _request(line: str, agent: str) -> bytes:
    for word, text in _WORDS.items():
        line = line.replace(word, text)
    first, *fields = line.split("|")
    body = _CHUNKS if _WORDS["{chunked}"] in fields else _BODY if _WORDS["{length}"] in fields else b""
    return head(f"{first} HTTP/1.1", "Host: api.moby.localhost", f"User-Agent: {agent}", *fields) + body


RECORDED = (*requests(DOCKER_CLI, "Docker-Client/28.2.2 (linux)"), *requests(CRI_DOCKERD, "Go-http-client/1.1"))
