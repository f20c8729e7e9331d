"""Any op at once, on tensors that read like arrays."""
