"""Names of hosts, short enough for a table."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 30


def short_hosts(hosts: Iterable[str]) -> dict[str, str]:
    """Each host by a name of at most :data:`LONGEST` characters: without its domain where that tells them
    apart, and with the end of a long one, where nodes differ.

    >>> short_hosts(["node-1.example.org", "node-2.example.org"])["node-2.example.org"]
    'node-2'
    """
    unique = dict.fromkeys(hosts)
    labels = {host: host.partition(".")[0] or host for host in unique}
    if len(set(labels.values())) < len(unique) or all(label.isdecimal() for label in labels.values()):
        labels = {host: host for host in unique}  # addresses, and one name in several domains
    return {
        host: name if len(name) <= LONGEST else "…" + name[1 - LONGEST :] for host, name in labels.items()
    }
