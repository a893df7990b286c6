"""The PD serving system: KV sizes, workloads and the serving engine as a state machine without I/O or
clock."""
