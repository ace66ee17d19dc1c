"""Where a server's KV events can be heard: from what a person says, and what the server says of its publishers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.attach.address import KvAddress, is_bound, reachable
from app.attach.cleaning import cleaned
from app.attach.facts import Facts


def addresses(chosen: KvAddress, facts: Facts, url: str, ranks: Iterable[str]) -> Mapping[str, KvAddress]:
    """Of each engine's publisher. `chosen` is that of the first; the server knows where to ask for what was missed."""
    sources = facts.kv_sources or {}
    found = {}
    for rank in sources or ranks:
        address = chosen.of_rank(int(rank)) if rank.isdecimal() else chosen
        source = sources.get(rank)
        if not address.replay and source and source.replay_endpoint:
            address = KvAddress(address.endpoint, reachable(source.replay_endpoint, url))
        found[rank] = address
    return found


def hint(chosen: KvAddress | None, facts: Facts, url: str) -> str:
    """How they could be heard, if they are not; "" if there is nothing to say."""
    if facts.kv_sources == {}:
        return "it publishes no KV events; vLLM does with --kv-events-config." if chosen or facts.kind == "vLLM" else ""
    if chosen or not facts.kv_sources:
        return ""
    endpoint = next(iter(facts.kv_sources.values())).endpoint
    shown = cleaned(endpoint, 100)
    if endpoint.startswith("tcp://") and not is_bound(endpoint):
        return f"it sends its KV events to {shown}: there, --kv-events 'tcp://*:{shown.rpartition(':')[2]}' listens."
    place = reachable(endpoint, url)
    if not place:
        return f"it publishes KV events at {shown}, which only its own machine can reach."
    return f"it publishes KV events: --kv-events {cleaned(place, 100)} shows its prefix cache."
