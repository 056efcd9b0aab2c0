"""The text of a PDF, page by page. Reads one file below the root."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pypdf import PasswordType, PdfReader
from pypdf.errors import PyPdfError

MOST_BYTES = 200 * 1024 * 1024
MOST_CHARACTERS = 500_000


class BadInput(ValueError):
    """Input that no further try can mend."""

    retryable = False


def run(path: str, first_page: int, pages: int, password: str = "") -> dict[str, object]:
    """The text of `pages` pages from `first_page` on; fewer where they are long."""
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    root = Path(os.environ["SKILL_ROOT"]).resolve()
    target = inside(root, path)
    try:
        reader = PdfReader(target)
        if reader.is_encrypted and reader.decrypt(password) is PasswordType.NOT_DECRYPTED:
            raise BadInput(f"{path!r} is encrypted: give its password")
        count = len(reader.pages)
        if first_page > count:
            raise BadInput(f"{path!r} has {count} pages: first_page is {first_page}")
        found: list[dict[str, object]] = []
        characters = 0
        for number in range(first_page, min(first_page + pages, count + 1)):
            text = reader.pages[number - 1].extract_text().encode("utf-8", "replace").decode()
            if found and characters + len(text) > MOST_CHARACTERS:
                break
            characters += len(text)
            found.append({"page": number, "text": text[:MOST_CHARACTERS]})
    except (PyPdfError, OSError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BadInput(f"{path!r} is no PDF that can be read: {type(error).__name__}: {error}") from None
    return {
        "path": target.relative_to(root).as_posix(),
        "page_count": count,
        "pages": found,
        "more": first_page + len(found) <= count,
    }


def inside(root: Path, path: str) -> Path:
    """The real path of a regular file below `root`."""
    if "\0" in path:
        raise BadInput("path has a NUL character")
    try:
        target = (root / path).resolve(strict=True)
    except (OSError, RuntimeError):
        raise BadInput(f"path {path!r}: there is no such file") from None
    if not target.is_relative_to(root) or not target.is_file():
        raise BadInput(f"path {path!r} is no file below the root")
    if target.stat().st_size > MOST_BYTES:
        raise BadInput(f"path {path!r} has more than {MOST_BYTES} bytes")
    return target
