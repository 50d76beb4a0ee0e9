"""Short names tell hosts apart."""

from __future__ import annotations

from zerokit.report.host_names import LONGEST, short_hosts


def test_domains_go_where_the_rest_differs() -> None:
    assert short_hosts(["a.x.org", "b.x.org"]) == {"a.x.org": "a", "b.x.org": "b"}
    assert short_hosts(["a.x.org", "a.y.org"]) == {"a.x.org": "a.x.org", "a.y.org": "a.y.org"}
    assert short_hosts(["10.0.0.1", "10.0.0.2"]) == {"10.0.0.1": "10.0.0.1", "10.0.0.2": "10.0.0.2"}
    assert short_hosts(["10.0.0.1"]) == {"10.0.0.1": "10.0.0.1"}
    assert short_hosts([]) == {} and short_hosts(["", "b"]) == {"": "", "b": "b"}


def test_of_a_long_name_the_end_stays() -> None:
    hosts = [f"a-very-long-name-of-a-node-in-a-cluster-{number:04d}" for number in range(20)]
    shown = short_hosts(hosts)
    assert len(set(shown.values())) == 20
    assert all(len(name) == LONGEST and name.startswith("…") for name in shown.values())
    assert shown[hosts[7]].endswith("-0007")
