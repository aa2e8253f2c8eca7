"""`bedrock download`: saves the images of a conversation as files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bedrock import Conversation
from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import NAME
from bedrock.cli.connect import connect
from bedrock.cli.display.images import SHOWN, kind, short
from bedrock.cli.output_files import write_file
from bedrock.cli.text.output import print_text

if TYPE_CHECKING:
    from bedrock import Conversation
    from bedrock.messages import Image


@click.command()
@NAME
@click.argument("images", metavar="[IMAGE]...", nargs=-1)
@click.option(
    "-o",
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default="the current one",
    help="Where to put them.",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite files that exist.")
@click.pass_context
def download(ctx: click.Context, name: str, images: tuple[str, ...], directory: Path, force: bool) -> None:
    """Save the images of a conversation.

    They are saved as they were sent, or as a tool read them. IMAGE is what `bedrock show` prints behind an image;
    without one, all are saved. A file that exists is refused, unless it is the image already; the others are saved.
    """
    conversation = connect(ctx).conversation(name)
    refused = []
    for identity, image in _chosen(_all(conversation), images).items():
        file = directory / f"{identity}.{kind(image)}"
        data = conversation.attachment(image.attachment)
        if not _holds(file, data):
            if os.path.lexists(file) and not force:
                refused.append(str(file))
                continue
            write_file(file, [data], force=True, follow_link=False)
        print_text(str(file))
    if refused:
        raise exits.CommandError(
            f"{', '.join(refused)}: there is another file already", "--force overwrites.", exits.USAGE
        )


def _holds(file: Path, data: bytes) -> bool:
    try:
        return file.stat().st_size == len(data) and file.read_bytes() == data
    except OSError:
        return False


def _all(conversation: Conversation) -> dict[str, Image]:
    return {short(image): image for message in conversation.messages() for image in message.images}


def _chosen(found: dict[str, Image], wanted: tuple[str, ...]) -> dict[str, Image]:
    if not found:
        raise exits.CommandError("there are no images in this conversation", exit_code=exits.FAILED)
    for name in wanted:
        if name[:SHOWN] not in found:
            there = ", ".join(found)
            raise exits.CommandError(
                f"there is no image {name!r} in this conversation", f"There are: {there}", exits.FAILED
            )
    return {name[:SHOWN]: found[name[:SHOWN]] for name in wanted} if wanted else found
