"""A real engine on the CPU whose device has memory of its own: of each incarnation 16 MiB more.

Run as `python -m tests.fakes.roomy_engine` in place of `dunlin.engine`.
"""

import sys
from dataclasses import replace

from dunlin.engine.process.options import parse_options
from dunlin.runtime.parent_death import die_with_parent

FIRST_BYTES, MORE_BYTES = 224 << 20, 16 << 20


def main() -> int:
    options = parse_options(sys.argv[1:])
    die_with_parent(options.parent_pid)
    from dunlin.engine.device.base import EngineDevice, cpu_device
    from dunlin.engine.device.room import DeviceRoom
    from dunlin.engine.process import main

    whole = FIRST_BYTES + options.incarnation * MORE_BYTES

    def roomy(name: str) -> EngineDevice:
        return replace(cpu_device(), room=DeviceRoom(lambda: (whole, whole)))

    main.open_device = roomy  # type: ignore[attr-defined]
    return main.run(options)


if __name__ == "__main__":
    sys.exit(main())
