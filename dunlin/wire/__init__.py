"""Protobuf and gRPC on one side, messages on the other. Import the modules; this package loads nothing by itself.

codec, envelopes    bytes of messages, and of frames
protos              the .proto files, written from the messages
channels            gRPC's settings
security            TLS, and which role may call which
certificate_reloader  certificates that are renewed while a process runs
streams             one conversation between two processes: dialling, accepting, probing
rpc                 unary and streaming calls of clients and tools; health; the listening port
service             the common runtime of every service: options, membership, decisions to the monitors
"""

import os

# gRPC reads this when it is imported. Its notices (a peer's GOAWAY and the like) would land in users' terminals.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
