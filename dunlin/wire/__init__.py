"""Protobuf and gRPC on one side, messages on the other. Import the modules; this package loads nothing by itself.

codec, envelopes              bytes of messages, and of frames
channels, methods             gRPC's settings; unary and streaming methods for clients and tools
security                      TLS, and which role may call which
streams, acceptor, dialer     one conversation between two processes
dialing, reasons, server      which members are dialled; decisions to the monitors; the listening port
membership, prober            the members, every death confirmed
options, process, service     the common runtime of every service
"""

import os

# gRPC reads this when it is imported. Its notices (a peer's GOAWAY and the like) would land in users' terminals.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
