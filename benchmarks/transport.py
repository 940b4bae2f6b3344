"""Regions from one process to another: by sockets, by sockets with TLS, and by NIXL's one-sided writes, side by side.

    python -m benchmarks.transport
    python -m benchmarks.transport --namespaces     the receiver behind a virtual cable (needs root)

Each way carries the same regions, one after the other and several at once, in rounds that alternate between the ways, so
that other work on the machine hits all of them. The receiver hashes every byte, as the kvstore does.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import xxhash

from benchmarks import output
from benchmarks.namespaces import ROOT, cable
from benchmarks.output import Outcome, say
from dunlin.certificates import issue, make_ca
from dunlin.messages.exchange import TransferAgent
from dunlin.messages.types import Priority, Region
from dunlin.tether import tethered
from dunlin.transport.courier import Courier
from dunlin.transport.nixl_agent import is_installed, open_agent
from dunlin.transport.outbound import Consignment
from dunlin.transport.payload import Payload
from dunlin.transport.receiver import Receiver
from dunlin.transport.sender import Parcel, Sender
from dunlin.transport.sockets import signed
from dunlin.wire.security import Security, server_name
