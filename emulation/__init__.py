"""The emulated network: sandbox, Mininet nodes, Open vSwitch, shaping, sampling, and the run itself."""
