"""Serve models: requests of the Open Inference Protocol v2 over HTTP and gRPC.

`service.InferenceService` is what both transports call; `models.Models` is what it takes models
from. The extra `serve` brings what the transports need; importing this package needs nothing.
"""
