import pytest, time, collections
from tests.engines import docker_cli
pytestmark = [pytest.mark.engine, pytest.mark.slow]

@pytest.mark.parametrize("what", ["load", "import - A:b", "build -", "import -c BAD - x:1", "cp - none:/tmp"])
def test_early(dockerd, between, what):
    for name, socket in (("direct", dockerd.socket), ("through", between)):
        c = collections.Counter(); s = []
        for i in range(15):
            t = time.time()
            o = docker_cli.run(socket, *what.split(), stdin=b"no archive at all" * (4 << 20))
            s.append(time.time() - t)
            c[(o.exit_code, o.stdout[-150:], o.stderr[-200:])] += 1
        print(what, name, round(max(s), 2), dict(c))
