"""What an engine leaves is found by its mark alone, and goes; what is not its own stays."""

import subprocess
import sys
import uuid
from pathlib import Path

from tests.engines import leftovers
from tests.system.proxy import wait_until


def test_processes_with_the_mark_are_ended_and_no_others() -> None:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-c", "import time; time.sleep(1000)"]
    marked, other = subprocess.Popen([*command, mark]), subprocess.Popen(command)
    try:
        wait_until(lambda: leftovers.processes(mark) == {marked.pid}, "it runs its program, and is found")
        leftovers.end(lambda: leftovers.processes(mark))
        assert marked.wait() == -9
        assert other.poll() is None
    finally:
        for process in (marked, other):
            process.kill()
            process.wait()


def test_new_directories_go_when_they_are_empty(tmp_path: Path) -> None:
    old, new, used = tmp_path / "old", tmp_path / "new", tmp_path / "used"
    old.mkdir()
    directories = leftovers.NewDirectories([new / "below", new, old, used])
    (new / "below").mkdir(parents=True)
    used.mkdir()
    (used / "file").touch()
    directories.remove()
    assert sorted(tmp_path.iterdir()) == [old, used]


def test_sockets_of_ended_shims_are_removed(tmp_path: Path) -> None:
    bundle = tmp_path / "state/io.containerd.runtime.v2.task/moby/one"
    bundle.mkdir(parents=True)
    (tmp_path / "shim.sock").touch()
    (bundle / "address").write_text(f"unix://{tmp_path}/shim.sock\n")
    leftovers.remove_shim_sockets(tmp_path / "state")
    assert not (tmp_path / "shim.sock").exists()
