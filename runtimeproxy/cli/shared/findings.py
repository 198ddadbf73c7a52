"""What the doctor's checks find, as rows.

Owns the columns of a finding.
Must not know: what a check looks at; ``doctor`` is imported only when it is to run.
Invariant: no text of a finding can control the terminal.
"""

from runtimeproxy.settings.config import Config


def findings(settings: Config) -> list[dict[str, str | None]]:
    """Return what the checks found, a row for each finding."""
    from runtimeproxy.doctor import machine, table  # heavy: the clients of runtimes and hook servers

    return [
        {"check": c.id, "verdict": f.verdict.value, "why": _line(f.why), "do": _line(f.do) or None, "doc": c.place}
        for c, f in table.examine(machine.Machine(settings))
    ]


def _line(text: str) -> str:
    """Return a text as one line that cannot control the terminal: the names of files are in it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
