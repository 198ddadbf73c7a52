from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ContainerEnvs(_message.Message):
    __slots__ = ("container_envs",)
    CONTAINER_ENVS_FIELD_NUMBER: _ClassVar[int]
    container_envs: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, container_envs: _Optional[_Iterable[bytes]] = ...) -> None: ...
