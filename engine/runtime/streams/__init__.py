"""Many runs in flight: pipelines, round robin, replicas."""
