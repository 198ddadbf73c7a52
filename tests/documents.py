"""The blocks of the documents, and who shows that each is true.

A block that begins with ``$`` is written by a script, with its outputs. One with a language is read by the
tests. Every other one is run by tests/soak/test_documented.py as it is on its page, or BLOCKS names what runs it, or
that it is nothing to run.
"""

from collections.abc import Iterator
from functools import cache
from io import StringIO
from typing import NamedTuple

from docutils import nodes
from docutils.core import publish_doctree

from tests.docs import DOCS, ROOT

PAGES = {
    **{name: (ROOT / name).read_text() for name in ("README.rst", "CHANGELOG.rst", "CONTRIBUTING.rst", "SECURITY.rst")},
    **{f"docs/{name}.rst": text for name, text in sorted(DOCS.items())},
}
PICTURE = "a picture, a list of names, or an output that is not shown whole"
NAMED = "names the commands that others run"
NOT_RUN = (PICTURE, NAMED)
CLUSTER = "tests/soak/test_cluster.py::test_chart_is_rolled_out_and_removed"
"""It runs each block of kubectl and helm, too."""
SIGNED = "tests/building/test_sign.py::test_signed_release_is_verified_by_the_public_key"
UNITS = "tests/machines/node.py::_put_units"
WRITTEN = {"docs/commands.rst": "tests/outputs.py", "docs/migration.rst": "tests/soak/test_migration.py"}
"""The pages with outputs, and what writes them."""
FRESH = "tests/soak/test_fresh.py::test_readme_works_in_environment"


class Block(NamedTuple):
    """A literal block of a page; ``language`` is "" without one."""

    page: str
    text: str
    language: str

    @property
    def first(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def needs_a_cluster(self) -> bool:
        return all(line.startswith(("kubectl ", "helm ")) for line in self.lines)

    @property
    def lines(self) -> list[str]:
        """Return its command lines, each whole: a backslash at the end of a line joins it with the next one."""
        return self.text.replace("\\\n", "").splitlines()


@cache
def parsed(page: str) -> tuple[nodes.document, str]:
    """Return a page as docutils reads it, and its warnings."""
    warnings = StringIO()
    settings = {"report_level": 2, "halt_level": 5, "warning_stream": warnings, "file_insertion_enabled": False}
    return publish_doctree(PAGES[page], source_path=page, settings_overrides=settings), warnings.getvalue()


def blocks(page: str) -> Iterator[Block]:
    """Yield the literal blocks of a page."""
    document, _ = parsed(page)
    for node in document.findall(nodes.literal_block):
        classes: list[str] = node.get("classes", [])
        languages = [name for name in classes if name != "code"]
        yield Block(page, node.astext(), languages[0] if languages else "")


def block(page: str, first: str) -> Block:
    """Return the one block of a page that begins with a line."""
    [found] = [each for each in blocks(page) if each.first == first]
    return found


BLOCKS: dict[tuple[str, str], str] = {
    (
        "docs/architecture.rst",
        "cli                                  the command line: entry points, commands, their output",
    ): PICTURE,
    ("docs/commands.rst", "runtimeproxy 0.9.0 containerd   ready, degraded   up 24 h 43 min   last 10 s"): PICTURE,
    (
        "docs/release.rst",
        "bin/      the programs, and python3 for hook servers of one's own: sh scripts that start the loader",
    ): PICTURE,
    ("README.rst", "kubelet  ->  runtimeproxy  ->  containerd or dockerd"): PICTURE,
    ("README.rst", "scripts/demo"): FRESH,
    ("README.rst", "python3 -m venv /opt/runtimeproxy-venv"): FRESH,
    ("docs/install.rst", "python3 -m venv /opt/runtimeproxy-venv"): FRESH,
    ("docs/operation.rst", "cp -r runtimeproxy*.{socket,service,service.d} /etc/systemd/system"): UNITS,
    ("docs/release.rst", "minisign -Vm checksums.txt -P PUBLICKEY"): SIGNED,
    ("docs/release.rst", 'minisign -Sm checksums.txt -s KEYFILE -t "runtimeproxy VERSION, commit COMMIT"'): SIGNED,
    (
        "docs/release.rst",
        "skopeo copy oci-archive:runtimeproxy_VERSION_image.tar docker://REGISTRY/runtimeproxy:VERSION",
    ): CLUSTER,
    ("CONTRIBUTING.rst", "scripts/test --fast      the fast tests"): NAMED,
}
