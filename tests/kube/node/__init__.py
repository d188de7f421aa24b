"""What a kubelet does on its node."""
