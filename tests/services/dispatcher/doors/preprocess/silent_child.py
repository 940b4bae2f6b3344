"""A helper process that begins with each body and answers none."""

import argparse
import socket

from services.dispatcher.doors.preprocess.helper import READY_FRAME, receive_frame, send_frame

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket-fd", type=int, required=True)
    with socket.socket(fileno=parser.parse_known_args()[0].socket_fd) as connection:
        while True:
            receive_frame(connection)
            send_frame(connection, READY_FRAME)
