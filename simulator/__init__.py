"""The simulator: the services' cores in virtual time, against models of engines, networks, etcd and clients.

An address holds a service's core or a model of a part outside the cores; a core cannot tell which. The folders, from
the lowest: `engine` models engines, `cluster` joins cores and models in virtual time, `study` compares presets under a
workload, `campaign` injects faults and checks invariants. No module here makes a scheduling decision, imports a server
or the wire, or reads a core's private state.
"""
