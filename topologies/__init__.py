"""Fabrics as data: wiring, addresses, paths and the max-min reference. Pure, and standard library only.

(Standard library only, because `mn --custom topologies/mn.py` loads it with the distribution's Python.)
"""
