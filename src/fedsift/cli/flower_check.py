"""fedsift flower check: what a node's operator wants to know before the node joins."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedsift.cli.console import error_handler, say, user_error
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json, Overrides, Project

# The settings of a node and of its server, under names that units and containers set.
NodeConfig = Annotated[
    str,
    typer.Option(
        "--node-config",
        envvar="FEDSIFT_NODE_CONFIG",
        help="As for flower-supernode: 'partition-id=0 data=\"...\"', or a .toml file.",
        show_default=False,
    ),
]
Server = Annotated[
    str | None,
    typer.Option("--server", envvar="FEDSIFT_SERVER", metavar="HOST:PORT", help="The server."),
]
RootCertificates = Annotated[
    Path | None,
    typer.Option(
        "--root-certificates",
        envvar="FEDSIFT_ROOT_CERTIFICATES",
        help="The authority of the server's certificate: ca.crt.",
    ),
]


def check(
    folder: Project,
    overrides: Overrides = None,
    node_config: NodeConfig = "",
    server: Server = None,
    root_certificates: RootCertificates = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", envvar="FEDSIFT_NODE_KEY", help="The node's private key."),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option("--expect", help="The fingerprint that the public set should have."),
    ] = None,
    as_json: Json = False,
) -> None:
    """On a node, before it joins: versions, project, data, folders, key, server and clock."""
    with error_handler():
        from fedsift.flower import node_check

        node = node_check.Node(
            folder,
            read_flower_config("--node-config", node_config),
            tuple(overrides or ()),
            expect,
            key,
            server,
            root_certificates,
        )
        found = []
        for finding in node_check.look_at_node(node):
            found.append(finding)
            if not as_json:
                say(f"{finding.level:<7}  {finding.about}: {finding.text}")
        if as_json:
            print_json([asdict(finding) for finding in found])
        if any(finding.level == node_check.ERROR for finding in found):
            raise typer.Exit(1)


def read_flower_config(option: str, text: str) -> dict[str, object]:
    """By Flower's own reader, so that it means the same here and there."""
    from click import ClickException
    from flwr.common.config import parse_config_args

    try:
        return parse_config_args([text] if text else None)
    except ClickException:
        raise user_error(
            f"{option} cannot be read: {text!r}; write 'number=0 name=\"text\"'"
        ) from None
