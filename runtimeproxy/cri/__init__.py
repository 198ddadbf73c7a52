"""The CRI front: gRPC between the kubelet and a CRI runtime, relayed frame by frame (relay-rules A)."""
