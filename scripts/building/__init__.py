"""The build of a release: scripts/build, described in docs/release.rst.

``__main__`` has the table of artefacts. A function ``build(work, dist)`` makes each: it puts files into the directory
``dist`` and returns them. ``sources`` are in ``work/source``. The ``tree`` that archive, packages and image have in
common is made once, in ``work/tree``.
"""
