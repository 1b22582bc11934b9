"""The commands that start a deployment with TLS, a proxy and node keys: each machine's own."""

from __future__ import annotations

import shlex

from fedsift.flower.proxy import Proxy
from fedsift.flower.superlink import QUIET

DATABASE = "superlink.db"  # in the folder of certificates: keys and runs survive a restart


def superlink_command(proxy: Proxy) -> list[str]:
    """On loopback, with what it must remember in a file."""
    made, folder = proxy.certificates, proxy.certificates.folder.resolve()
    host, _, port = proxy.link.rpartition(":")
    return [
        *("flower-superlink", "--host", host.strip("[]"), "--port", port),
        *("--database", str(folder / DATABASE)),
        *("--ssl-ca-certfile", str(folder / made.ca.name)),
        *("--ssl-certfile", str(folder / made.server.name)),
        *("--ssl-keyfile", str(folder / made.server_key.name)),
        "--enable-supernode-auth",
    ]


def supernode_command(address: str, ca: str, key: str, settings: str) -> list[str]:
    return [
        *("flower-supernode", "--superlink", address, "--root-certificates", ca),
        *("--auth-supernode-private-key", key, "--node-config", settings),
    ]


def write_out(proxy: Proxy, nodes: int, host: str) -> str:
    """All of it, to be read from top to bottom."""
    folder = proxy.certificates.folder.resolve()
    quoted = shlex.quote(str(folder))
    # Nothing is sent to Flower's makers, looked for or installed while a federation runs.
    settings = " ".join(
        f"{name}={value}" for name, value in QUIET.items() if name.startswith("FLWR")
    )
    address = f"{f'[{host}]' if ':' in host else host}:{proxy.listen.rpartition(':')[2]}"
    own = 'partition-id=0 memory="/var/lib/fedsift/memory"'
    node = supernode_command(address, "ca.crt", "node.key", own)
    project = ["PROJECT", f"clients={nodes}", f"cohort={nodes}"]
    look = ["fedsift", "flower", "check", *project, "--node-config", own, "--server", address]
    look += ["--root-certificates", "ca.crt", "--key", "node.key"]
    lines = [
        "# On the server, for ever (systemd: Restart=always). nginx: apt-get install nginx-light",
        f"{settings} {shlex.join(superlink_command(proxy))}",
        f"{shlex.join(proxy.command())} -g 'daemon off;'",
        "",
        "# At each node, once: its private key stays there. Send node.key.pub to the operator, by",
        "# a way that strangers cannot read: whoever knows it passes the proxy.",
        "fedsift flower key node.key",
        "",
        "# On the server, when a node's public key has come: which client it is",
        *(f"fedsift flower admit {quoted} {node} node-{node}.key.pub" for node in range(nodes)),
        "",
        "# At each node, once it is admitted: is all well? It needs ca.crt and the project.",
        f"# partition-id is the number of the client: 0 to {nodes - 1}.",
        shlex.join(look),
        "",
        f"# At each node, for ever (Restart=always): it calls {address} only.",
        f"{settings} {shlex.join(node)}",
        "",
        "# On the server: submit the project, and again after every crash",
        f"fedsift flower submit {' '.join(project)} --certs {quoted} --supervise",
    ]
    return "\n".join(lines) + "\n"
