"""How many replicas of a service answer a load in time: queues in virtual time."""
