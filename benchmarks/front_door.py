"""A federation as docs/deploy.md sets it up, on loopback: TLS, database, nginx, admitted nodes."""

import os
import signal
import time

from fedsift.flower import (
    admission,
    certificates,
    instructions,
    keys,
    local_deployment,
    proxy,
    seats,
)
from fedsift.flower.superlink import SuperLink


class FrontDoor:
    """Use in `with`: a SuperLink, the proxy before it, and the nodes of clients 0 to `nodes` - 1.

    All files of the server are in `here`/server, those of a node in `here`/node-CLIENT.
    """

    def __init__(self, here, nodes):
        self.server, self.places = here / "server", [here / f"node-{id}" for id in range(nodes)]
        made = certificates.create(self.server / "certs")
        self.deployment = local_deployment.Deployment(self.server / "flower", made, database=True)
        self.port, self.link = local_deployment.free_port(), f"127.0.0.1:{self.deployment.port}"
        self.proxy = proxy.Proxy(made, f"127.0.0.1:{self.port}", self.link)
        self.table = made.folder / seats.TABLE
        self.nodes, self.nginx = {}, None

    def __enter__(self):
        self.proxy.write()
        certs = self.table.parent
        SuperLink(self.link, certs, self.proxy.certificates.ca).write_connection()
        seats.write_table(self.table, seats.Table())
        self.deployment.__enter__()
        try:
            for client in range(len(self.places)):
                self.admit(client)
            self.start_proxy()
            for client in range(len(self.places)):
                self.start_node(client)
        except BaseException:
            self.deployment.stop()
            raise
        return self

    def __exit__(self, *_):
        self.deployment.stop()

    def admit(self, client):
        key = self.places[client] / "node.key"
        key.parent.mkdir(exist_ok=True)
        keys.create_key(key)
        public = keys.read_public_key(keys.public_path(key))
        admission.Register(self.table.parent, self.deployment).admit(client, public)

    def start_link(self):
        """Also again, with the same database."""
        self.deployment._start_link()

    def start_proxy(self):
        self.nginx = self.deployment._start("proxy", *self.proxy.command(), "-g", "daemon off;")

    def start_node(self, client):
        place, port = self.places[client], str(local_deployment.free_port())
        words = instructions.supernode_command(
            f"127.0.0.1:{self.port}",
            str(self.proxy.certificates.ca),
            str(place / "node.key"),
            f'partition-id={client} memory="{place / "memory"}"',
        )
        own = ["env", f"FLWR_HOME={place / 'flower'}"]
        self.nodes[client] = self.deployment._start(f"node-{client}", *own, *words, "--port", port)

    def submit(self, app, folder, overrides, **how):
        how |= {"overrides": overrides, "folder": str(folder), "seats": str(self.table)}
        return self.deployment.submit(app, {"wait": 120.0, "poll": 0.2} | how)

    def read_log(self, name):
        """What a process has said."""
        return (self.deployment.home / f"{name}.log").read_text(errors="replace")


def kill_group(process):
    """Kill -9 of a process and of what it started, as if its machine had lost power."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def wait_until(happened, what, seconds=600.0):
    end = time.monotonic() + seconds
    while not (found := happened()):
        if time.monotonic() > end:
            raise SystemExit(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)
    return found
