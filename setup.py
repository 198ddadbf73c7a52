"""The build: setup.cfg says what the package is, this file only which folders it is made of."""

import sys

from setuptools import find_packages, setup

if sys.version_info < (3, 11):  # noqa: UP036 - pip checks python_requires only after it has resolved all dependencies
    sys.exit(f"runtimeproxy needs Python 3.11 or later, and this is {sys.version.split()[0]}: take another Python")

proxy = find_packages(include=["runtimeproxy", "runtimeproxy.*"])
hook_servers = ["runtimeproxy_hooks", *(f"runtimeproxy_hooks.{name}" for name in find_packages("hooks"))]
installer = ["runtimeproxy_installer"]

setup(
    packages=proxy + hook_servers + installer,
    package_dir={"runtimeproxy_hooks": "hooks", "runtimeproxy_installer": "deploy/installer"},
)
