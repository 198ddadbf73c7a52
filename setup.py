"""The build: setup.cfg says what the package is, this file only which folders it is made of."""

from setuptools import find_packages, setup

proxy = find_packages(include=["runtimeproxy", "runtimeproxy.*"])
hook_servers = ["runtimeproxy_hooks", *(f"runtimeproxy_hooks.{name}" for name in find_packages("hooks"))]
installer = ["runtimeproxy_installer"]

setup(
    packages=proxy + hook_servers + installer,
    package_dir={"runtimeproxy_hooks": "hooks", "runtimeproxy_installer": "deploy/installer"},
)
