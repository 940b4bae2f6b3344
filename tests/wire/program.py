"""A whole service around a core that does little, for tests that kill, stop and misconfigure processes.

It accepts dispatch and answers each Cancel with Ended; a Cancel of request 666 makes its core fail.
"""

import argparse
import sys
from collections.abc import Sequence

from dunlin.effects import Address, Effect, Message, Send
from dunlin.messages.dispatch import Cancel, Ended
from dunlin.wire.envelopes import DISPATCH
from dunlin.wire.service.options import add_service_flags, service_options
from dunlin.wire.service.process import run_service
from dunlin.wire.service.service import ServiceProcess


class EchoCore:
    """Cancel in, Ended out."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        if not isinstance(message, Cancel):
            return ()
        if message.request == 666:
            raise ValueError("a planted mistake")
        return [Send(sender, Ended(message.request, message.attempt))]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    add_service_flags(parser)
    options = service_options("instance", parser.parse_args(arguments))

    async def serve() -> int:
        service = ServiceProcess(options)
        await service.start(EchoCore, accepts=[DISPATCH])
        print(service.address.incarnation, service.endpoint, flush=True)
        return await service.run_until_stopped()

    return run_service(options, serve)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
