"""What an engine tells its peers of its memory; instances pass it on as bytes (`EngineReady.agent`, `Meet.agent`)."""

from dunlin.messages.declare import message, number
from dunlin.messages.types import I32, I64, i32, i64


@message()
class EngineAgent:
    """What `EngineReady.agent` holds, encoded: where peers find this engine's memory.

    `node` names the running kernel and the node's name in the cluster: there, the descriptor `page_fd` of process `pid`
    opens the peer page, in which `life` says that this very engine still serves, and an `ArenaGeometry` where its KV
    lies. Peers on other nodes dial `endpoint` and show `token`, a secret of this life; empty: no helper answers them.
    """

    node: str = number(1)
    pid: int = number(2)
    page_fd: int = number(3)
    life: int = number(4)
    endpoint: str = number(5, default="")
    token: bytes = number(6, default=b"")


@message()
class ArenaGeometry:
    """Where the slots of an engine lie in the file `arena_fd` of its process, in one layout.

    Columns by layer that has slots: `layer`, `slots`. Columns by run of file bytes, in the order in which they follow
    one another in a layer's KV: `run_layer`, `run_offset`, `run_length`; likewise `weight_…` for the weights of each
    layer held. Room i of the file `room_fd`, counted from 1, lies at `(i - 1) * room_bytes`. The inodes tell the files
    from others that have got the same numbers since.
    """

    layout: int = number(1)
    arena_fd: int = number(2)
    arena_inode: int = number(3)
    arena_bytes: int = number(4)
    kv_dtype: str = number(5)
    slot_bytes: int = number(6)
    layer: I32 = number(7, default_factory=i32)
    slots: I64 = number(8, default_factory=i64)
    run_layer: I32 = number(9, default_factory=i32)
    run_offset: I64 = number(10, default_factory=i64)
    run_length: I64 = number(11, default_factory=i64)
    room_fd: int = number(12, default=-1)
    room_inode: int = number(13, default=0)
    rooms: int = number(14, default=0)
    room_bytes: int = number(15, default=0)
    weight_layer: I32 = number(16, default_factory=i32)
    weight_offset: I64 = number(17, default_factory=i64)
    weight_length: I64 = number(18, default_factory=i64)
