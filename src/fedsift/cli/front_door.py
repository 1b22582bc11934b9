"""Verbs of `fedsift flower` for who may come in: certificates, keys, the proxy, the table."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsift.cli.console import error_handler, say, user_error, warn
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json

if TYPE_CHECKING:
    from fedsift.flower.admission import Register
    from fedsift.flower.proxy import Proxy

Folder = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="The folder that `certs` made.", show_default=False),
]
Client = Annotated[
    int, typer.Argument(metavar="CLIENT", min=0, help="Its partition-id.", show_default=False)
]
LISTEN_OPTION = typer.Option("--listen", help="Where nodes reach the proxy.")
LINK_OPTION = typer.Option("--link", help="Where the SuperLink listens: on loopback.")
LISTEN, LINK = "0.0.0.0:8443", "127.0.0.1:8000"


def certs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for the files.", show_default=False)
    ],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes that will come.")] = 4,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Name or address nodes reach the server by; may be repeated."),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, help="How long the server's certificate is good for.")
    ] = 365,
    listen: Annotated[str, LISTEN_OPTION] = LISTEN,
    link: Annotated[str, LINK_OPTION] = LINK,
    renew: Annotated[
        bool, typer.Option("--renew", help="A new server certificate; the authority stays.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make certificates and the front door of a server, and print the commands for all machines."""
    with error_handler():
        from fedsift.files import write_atomic
        from fedsift.flower import certificates, instructions
        from fedsift.flower.proxy import Proxy

        if renew:
            certificates.renew(folder, host, days)
            if as_json:
                print_json({"wrote": [folder / "server.crt"]})
                return
            say(f"renewed {folder / 'server.crt'}; restart the SuperLink and the proxy")
            return
        hosts = host or list(certificates.LOOPBACK)
        front = Proxy(certificates.Certificates(folder), listen, link)
        certificates.create(folder, hosts, days)
        _write_server_side(front)
        text = instructions.write_out(front, nodes, hosts[0])
        write_atomic(folder / "commands.txt", text.encode())
        if as_json:
            made = sorted(file for file in folder.iterdir() if file.is_file())
            print_json({"wrote": made, "commands": text})
            return
        say(text)
        say(
            f"wrote these commands, certificates and the proxy's configuration to {folder}; ca.key"
            " can stay off line from now on"
        )


def key(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Where to write the private key.", show_default=False),
    ],
    as_json: Json = False,
) -> None:
    """Make this node's key, here. The private key stays; send FILE.pub to the operator."""
    with error_handler():
        from fedsift.flower import keys

        made = keys.create_key(file)
        if as_json:
            about = {"public_key": made.text, "fingerprint": made.fingerprint}
            print_json({"wrote": [file, keys.public_path(file)]} | about)
            return
        say(made.text)
        say(f"wrote {file} (keep it here) and {keys.public_path(file)} (for the operator alone)")
        say(f"fingerprint, to compare by telephone: {made.fingerprint}")


def proxy(
    folder: Folder,
    listen: Annotated[str | None, LISTEN_OPTION] = None,
    link: Annotated[str | None, LINK_OPTION] = None,
    body: Annotated[
        int | None,
        typer.Option("--body", min=1, help="MiB of the largest body; Flower sends 6 at most."),
    ] = None,
    rate: Annotated[
        int | None, typer.Option("--rate", min=1, help="Requests a second of one node.")
    ] = None,
    behind: Annotated[
        int | None,
        typer.Option(
            "--behind",
            min=1,
            help="Nodes behind one address: it has as many times the limits of a node.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the proxy's configuration again: nginx lets in who names the key of an admitted node.

    What no option names stays as it is.
    """
    with error_handler():
        from fedsift.flower import proxy as proxies
        from fedsift.flower.certificates import Certificates

        made = Certificates(folder)
        if not made.ca.is_file():
            raise user_error(f"{folder} has no certificates; make them with: fedsift flower certs")
        given = {"listen": listen, "link": link, "body": body, "rate": rate, "behind": behind}
        front = proxies.change(made, given)
        _write_server_side(front)
        if as_json:
            print_json({"wrote": [front.config], "command": front.command()})
            return
        say(f"wrote {front.config}; start it with:\n{shlex.join(front.command())}")


def admit(
    folder: Folder,
    client: Client,
    file: Annotated[
        Path, typer.Argument(metavar="KEY.pub", help="Its public key.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Let a node in, as this client. A key that the client had before is revoked."""
    with error_handler():
        from fedsift.flower import keys

        public = keys.read_public_key(file)
        register = _open_register(folder)
        seat = register.admit(client, public).of_client(client)
        assert seat is not None
        if as_json:
            print_json({"client": client, "node": seat.node, "fingerprint": public.fingerprint})
        else:
            say(f"client {client} is node {seat.node}, with the key {public.fingerprint}")


def revoke(folder: Folder, client: Client, as_json: Json = False) -> None:
    """Shut a node out for good. Its client's seat is free for a new key."""
    with error_handler():
        _open_register(folder).revoke(client)
        if as_json:
            print_json({"revoked": client})
        else:
            say(f"client {client} has no key any more")


def nodes(
    folder: Folder,
    again: Annotated[
        bool,
        typer.Option("--register", help="Register all keys with a SuperLink that has lost them."),
    ] = False,
    as_json: Json = False,
) -> None:
    """List who is admitted as which client, and whether the node is online."""
    with error_handler():
        from fedsift.flower import seats

        register = _open_register(folder)
        table = register.register_again() if again else seats.read_table(register.path)
        known = register.list_nodes()
        rows = []
        for seat in table.seats:
            status = known.pop(seat.node, "not registered: run this again with --register")
            about = {"fingerprint": seat.key.fingerprint, "node": seat.node, "status": status}
            rows.append({"client": seat.client} | about)
            if not as_json:
                say(f"client {seat.client}  {seat.key.fingerprint}  node {seat.node}  {status}")
        if as_json:
            print_json({"nodes": rows, "without_client": known})
            return
        for node, status in known.items():
            if node in table.leaving:
                cure = (
                    f"has a revoked key: shut it out with: fedsift flower nodes {folder} --register"
                )
            else:
                cure = "has no client: remove it with: flwr supernode unregister"
            warn(f"node {node} ({status}) {cure}")


def _write_server_side(front: Proxy) -> None:
    """The proxy's configuration, Flower's own for the operator, and an empty table."""
    from fedsift.flower import seats
    from fedsift.flower.superlink import SuperLink

    folder = front.certificates.folder
    front.write()
    SuperLink(front.link, folder, front.certificates.ca).write_connection()
    if not (folder / seats.TABLE).exists():
        seats.write_table(folder / seats.TABLE, seats.Table())


def _open_register(folder: Path) -> Register:
    """The nodes of a deployment, with the SuperLink that `certs` or `proxy` named."""
    from fedsift.flower.admission import Register
    from fedsift.flower.certificates import Certificates
    from fedsift.flower.superlink import SuperLink, read_address

    link = SuperLink(read_address(folder), folder, Certificates(folder).ca)
    return Register(folder, link, _reload)


def _reload(folder: Path) -> None:
    """A running proxy reads the keys again."""
    from fedsift.flower import proxy as proxies

    if (command := proxies.reload(folder)) is not None:
        warn(f"the proxy does not know yet; where it runs, reload it with:\n{shlex.join(command)}")
