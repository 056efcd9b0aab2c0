"""Fetches one page: http and https only, bounded in size, redirects and time, never from the local network."""

from __future__ import annotations

import http.client
import ipaddress
import os
import re
import socket
import time
import urllib.error
import urllib.request
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

MOST_BYTES = 2 * 1024 * 1024
MOST_REDIRECTS = 5
MOST_LINKS = 500
WAIT_S = 10.0
ALL_S = 30.0
TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses of the older internet as a network of the newer one writes them."""
AGENT = "rolecall-fetch-page/1.0"

SKIPPED = {"script", "style", "noscript", "template", "svg", "head"}
BREAKS = {"p", "div", "br", "li", "tr", "section", "article", "pre", "table", "dt", "dd"}
BREAKS |= {"h1", "h2", "h3", "h4", "h5", "h6"}


class BadInput(ValueError):
    """Input that no further try can mend."""

    retryable = False


def run(url: str, max_characters: int, links: bool) -> dict[str, object]:
    """The page's text. A refusal by the page (4xx) is a result with its status; 429 and 5xx are tried again."""
    checked(url)
    opener = urllib.request.OpenerDirector()  # only these: no file:, no ftp:, no data:
    for handler in (
        urllib.request.ProxyHandler(), Plain(), Secure(), Redirects(),
        urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPErrorProcessor(),
    ):  # fmt: skip
        opener.add_handler(handler)
    headers = {"User-Agent": AGENT, "Accept": "text/html, text/*;q=0.9, */*;q=0.1"}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - its scheme is checked
    end = time.monotonic() + ALL_S
    try:
        reply = opener.open(request, timeout=WAIT_S)
    except urllib.error.HTTPError as error:
        if error.code == 429 or error.code >= 500:
            raise ConnectionError(f"{url} answered {error.code}") from None
        if 300 <= error.code < 400:
            raise BadInput(f"{url} leads on and on: more than {MOST_REDIRECTS} redirects are not followed") from None
        reply = error
    except urllib.error.URLError as error:
        if isinstance(error.reason, BadInput):
            raise error.reason from None
        raise ConnectionError(f"{url} can't be reached: {error.reason}") from None
    with reply:
        kind = reply.headers.get_content_type()
        if not (kind.startswith("text/") or kind in ("application/json", "application/xml", "application/xhtml+xml")):
            raise BadInput(f"{url} is of type {kind}, which is no text")
        data, more = read(reply, end)
        encoding = reply.headers.get_content_charset() or declared(data)
        final, status = reply.geturl(), int(reply.status)
    try:
        text = data.decode(encoding, "replace")
    except LookupError:
        text = data.decode("utf-8", "replace")
    page = Page(final)
    if kind in ("text/html", "application/xhtml+xml"):
        page.feed(text)
        page.close()
        title, text = " ".join("".join(page.title).split()), page.words()
    else:
        title = ""
    out = {"url": final, "status": status, "type": kind, "title": title[:1000], "text": text[:max_characters]}
    out["more"] = more or len(text) > max_characters
    if links:
        out["links"] = list(dict.fromkeys(page.links))[:MOST_LINKS]
    return out


def read(reply: http.client.HTTPResponse, end: float) -> tuple[bytes, bool]:
    data = bytearray()
    while len(data) <= MOST_BYTES:
        if time.monotonic() > end:
            raise TimeoutError(f"the page took longer than {ALL_S:g} s")
        part = reply.read1(65_536) if hasattr(reply, "read1") else reply.read(65_536)
        if not part:
            return bytes(data), False
        data += part
    return bytes(data[:MOST_BYTES]), True


def declared(data: bytes) -> str:
    found = re.search(rb"""<meta[^>]{0,200}charset=["']?([A-Za-z0-9_-]{1,40})""", data[:4096], re.IGNORECASE)
    return found[1].decode() if found else "utf-8"


def checked(url: str) -> str:
    """The address if it may be asked for."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise BadInput(f"{url!r} is no address") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"{url!r} is no http or https address")
    if parts.username or parts.password:
        raise BadInput("an address with a user or password is not fetched")
    if re.search(r"[\x00-\x20\x7f]", url):
        raise BadInput(f"{url!r} has a blank or control character")
    host = parts.hostname.rstrip(".").casefold()
    if host not in private_hosts() and (host == "localhost" or host.endswith(".localhost") or is_private(host)):
        raise BadInput(f"{host!r} is on this machine or the local network: not fetched")
    return url


def private_hosts() -> set[str]:
    return {name.strip().casefold() for name in os.environ.get("FETCH_PAGE_PRIVATE", "").split(",") if name.strip()}


def is_private(host: str) -> bool:
    """Whether `host` is an address that is not of the public internet; a name is none."""
    try:
        address = ipaddress.ip_address(host.strip("[]").split("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in TRANSLATED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        address = inner or address
    return not address.is_global or address.is_multicast or address.is_reserved


def connect(address: tuple[str, int], timeout: float, source: object = None) -> socket.socket:
    """A connection to the very address that was looked at: a name can't change its meaning in between."""
    host, port = address
    last: Exception = ConnectionError(f"{host!r} has no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if host.casefold() not in private_hosts() and is_private(str(place[0])):
            raise BadInput(f"{host!r} is on this machine or the local network: not fetched")
        link = socket.socket(family, kind, protocol)
        try:
            link.settimeout(timeout)
            link.connect(place)
        except OSError as error:
            link.close()
            last = error
        else:
            return link
    raise last


class PlainConnection(http.client.HTTPConnection):
    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        guard(self)


class SecureConnection(http.client.HTTPSConnection):
    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        guard(self)


def guard(connection: http.client.HTTPConnection) -> None:
    """Look at every address before it is connected to, unless it is the operator's own proxy."""
    proxies = {urlsplit(proxy).hostname for proxy in urllib.request.getproxies().values()}
    if connection.host not in proxies:
        connection._create_connection = connect


class Plain(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(PlainConnection, request)


class Secure(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(SecureConnection, request)


class Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = MOST_REDIRECTS
    max_repeats = 2

    def redirect_request(self, request, reply, code, message, headers, new):
        return super().redirect_request(request, reply, code, message, headers, checked(new))


class Page(HTMLParser):
    """Title, readable text and links of a page."""

    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self.base = base
        self.title: list[str] = []
        self.parts: list[str] = []
        self.links: list[str] = []
        self.skipping: list[str] = []
        self.in_title = False
        self.as_it_stands = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self.in_title = True
        elif tag == "body":
            self.skipping.clear()  # a head that was never closed
        elif tag in SKIPPED:
            self.skipping.append(tag)
        elif tag == "pre":
            self.as_it_stands += 1
        elif tag == "a" and not self.skipping:
            target = urljoin(self.base, dict(attributes).get("href") or "")
            if target.startswith(("http://", "https://")):
                self.links.append(target)
        if tag in BREAKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self.in_title = False
        elif tag == "pre":
            self.as_it_stands = max(0, self.as_it_stands - 1)
        elif tag in self.skipping:
            del self.skipping[self.skipping.index(tag) :]
        if tag in BREAKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self.in_title:
            self.title.append(data)
        elif not self.skipping:
            self.parts.append(data if self.as_it_stands else data.replace("\n", " "))

    def words(self) -> str:
        lines = (" ".join(line.split()) for line in "".join(self.parts).split("\n"))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
