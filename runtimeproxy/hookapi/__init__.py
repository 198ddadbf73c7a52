"""The hook protocol on the wire: package runtime.v1alpha1, service RuntimeHookService.

``api.proto`` has the messages, ``api_pb2`` is generated from it by scripts/genproto, ``codec`` turns values of the
model into bytes and back. Nothing else of the package touches a hook message.
"""
