"""The twin: the cores that serve, in virtual time, against models of engines, networks, etcd and clients.

What sits at an address here is a real core or a model of what lies outside of one; no core knows which. Nothing here
schedules anything, imports a server or a wire, or reads a core's private state.
"""
