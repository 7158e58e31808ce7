"""Makes servers appear on other ports of loopback, for the programs of one network namespace.

Arguments: `PORT=HOST:PORT`, the port inside and the server outside. Prints the id of the process whose namespace it is, and ends
when standard input ends.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
import threading

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
SET_INTERFACE_FLAGS = 0x8914
UP_AND_RUNNING = 0x41


def enter_own_namespace():
    user, group = os.geteuid(), os.getegid()
    flags = NEW_NETWORK if user == 0 else NEW_NETWORK | NEW_USER
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        sys.exit(f"cannot create a network namespace: {os.strerror(ctypes.get_errno())}; run the test as root")
    if user != 0:
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as map_file:
                map_file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_INTERFACE_FLAGS, struct.pack("16sH14x", b"lo", UP_AND_RUNNING))


def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    try:
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def forward(listener, server):
    while True:
        client, _ = listener.accept()
        try:
            upstream = socket.create_connection(server)
        except OSError:
            client.close()
            continue
        for pair in ((client, upstream), (upstream, client)):
            threading.Thread(target=copy, args=pair, daemon=True).start()


def main():
    pairs = [argument.split("=") for argument in sys.argv[1:]]
    servers = [(host, int(port)) for host, port in (server.rsplit(":", 1) for _, server in pairs)]
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        enter_own_namespace()
        listeners = [socket.create_server(("127.0.0.1", int(port))) for port, _ in pairs]
        socket.send_fds(theirs, [b"ready"], [listener.fileno() for listener in listeners])
        theirs.recv(1)  # until the parent ends
        os._exit(0)
    theirs.close()
    ready, sockets, _, _ = socket.recv_fds(ours, 16, max(len(pairs), 1))
    if not ready:
        sys.exit(1)
    for descriptor, server in zip(sockets, servers):
        listener = socket.socket(fileno=descriptor)
        threading.Thread(target=forward, args=(listener, server), daemon=True).start()
    print(child, flush=True)
    sys.stdin.read()


main()
