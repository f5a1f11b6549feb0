"""A reader of the live channel that knows only its documentation and the library `websockets`.

    REEVE_TOKEN=… python follow.py URL SEED CUTS ID…

Follows the executions at once. A proxy of its own ends the connection after some bytes, in a
handshake, between two frames or within one; the reader comes back with a cursor per execution. At
the end it must hold what the history over HTTP holds: equal, dense, nothing twice. Exits 0 if so.
"""

import asyncio
import json
import os
import random
import sys
import urllib.error
import urllib.parse
import urllib.request

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

PATIENCE = 60
# What this program has a use for. Everything else is kept and passed by.
KNOWN = {"execution.created", "execution.started", "execution.log", "execution.completed"}
FINAL = {"execution.completed", "execution.failed", "execution.cancelled"}


class Proxy:
    """Hands bytes on, and breaks the connection after `budget` of them; None is for ever."""

    def __init__(self, port, budget):
        self.port, self.budget, self.server, self.tasks = port, budget, None, set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    async def __aexit__(self, *_):
        self.server.close()
        for task in self.tasks:
            task.cancel()

    async def serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        try:
            there, here = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.transport.abort()
            return
        up = asyncio.ensure_future(self.copy(reader, here, None))
        self.tasks.add(up)
        await self.copy(there, writer, self.budget)
        up.cancel()
        for end in (writer, here):
            end.transport.abort()

    @staticmethod
    async def copy(source, target, budget):
        try:
            while budget is None or budget > 0:
                data = await source.read(65536 if budget is None else min(65536, budget))
                if not data:
                    return
                if budget is not None:
                    budget -= len(data)
                target.write(data)
                await target.drain()
        except OSError:
            return


class Reader:
    """What was read so far, by execution."""

    def __init__(self, url, token, ids):
        self.url, self.token, self.ids = url.rstrip("/"), token, ids
        self.port = urllib.parse.urlparse(url).port
        self.events = {one: [] for one in ids}
        self.over, self.unknown_types, self.before = set(), set(), {}
        self.epoch, self.connections, self.replays = None, 0, 0

    def cursors(self, ids):
        return [f"{one}:{len(self.events[one])}" for one in ids]

    def target(self):
        query = [("execution", cursor) for cursor in self.cursors(self.ids)]
        if self.epoch:
            query.append(("epoch", self.epoch))
        return f"{self.url.replace('http', 'ws', 1)}/events?{urllib.parse.urlencode(query)}"

    def take_ready(self, ready):
        if self.epoch not in (None, ready["epoch"]):
            # Another broker's history: all of it comes again, and must be the same.
            for one in self.ids:
                if self.events[one]:
                    self.before[one], self.events[one] = self.events[one], []
                    self.replays += 1
            self.over.clear()
        self.epoch = ready["epoch"]
        self.take_cursors(ready)

    def take_cursors(self, answer):
        for one, cursor in answer["cursors"].items():
            assert cursor == len(self.events[one]), f"{one}: a cursor that was never asked for"

    def take(self, document):
        kind = document["type"]
        if kind == "stream.lagged":
            one = document["execution_id"]
            assert document["reason"] == "epoch", f"something was not shown: {document}"
            assert document["resume_after"] == 0 and not self.events[one], document
        elif kind.startswith("execution."):
            one, held = document["execution_id"], self.events[document["execution_id"]]
            assert document["sequence"] == len(held) + 1, (
                f"{one}: {document['sequence']} came after {len(held)}"
            )
            held.append(document)
            old = self.before.get(one, [])
            if len(held) <= len(old):
                assert old[len(held) - 1] == document, f"{one}: told otherwise before: {document}"
            if kind in FINAL:
                self.over.add(one)
            if kind not in KNOWN:
                self.unknown_types.add(kind)
        elif kind not in ("stream.ready", "stream.subscribed"):
            self.unknown_types.add(kind)

    def done(self):
        return len(self.over) == len(self.ids)

    async def once(self, budget):
        """Connects, and reads until everything is over or the connection is."""
        headers = {"Authorization": f"Bearer {self.token}"}
        async with Proxy(self.port, budget) as port:
            try:
                async with connect(
                    self.target(), host="127.0.0.1", port=port, additional_headers=headers,
                    compression=None, proxy=None, ping_interval=None, open_timeout=PATIENCE,
                ) as socket:
                    self.connections += 1
                    await self.follow(socket)
                    return
            except (ConnectionClosed, InvalidHandshake, InvalidMessage, OSError, EOFError) as error:
                response = getattr(error, "response", None)
                assert response is None or response.status_code in (503, 429), error
        await asyncio.sleep(0.05)

    async def follow(self, socket):
        ready = json.loads(await socket.recv())
        assert ready["type"] == "stream.ready", f"first came {ready}"
        self.take_ready(ready)
        missing = ready["unknown"]
        while not self.done():
            if missing:
                # A broker that is new here learns of them in a moment.
                await asyncio.sleep(0.05)
                asked = {"executions": self.cursors(missing), "epoch": self.epoch}
                missing = []
                await socket.send(json.dumps({"type": "subscribe"} | asked))
            document = json.loads(await socket.recv())
            if document["type"] == "stream.subscribed":
                missing = document["unknown"]
                self.take_cursors(document)
            assert document["type"] not in ("stream.ready", "stream.error"), document
            self.take(document)
        pong = await socket.ping()
        await asyncio.wait_for(pong, PATIENCE)
        await asyncio.wait_for(socket.close(), PATIENCE)
        assert socket.close_code == 1000, f"closed with {socket.close_code}"

    def history(self, one):
        """Reads the history page by page."""
        events, after = [], 0
        while True:
            query = urllib.parse.urlencode({"id": one, "after": after, "limit": 50})
            request = urllib.request.Request(
                f"{self.url}/api/v1/executions/events?{query}",
                headers={"Authorization": f"Bearer {self.token}"},
            )
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                page = json.load(answer)
            events += page["events"]
            after = page["last_sequence"]
            if not page["more"]:
                return events


async def main():
    url, seed, cuts, *ids = sys.argv[1:]
    reader = Reader(url, os.environ["REEVE_TOKEN"], ids)
    dice = random.Random(int(seed))
    for _ in range(int(cuts)):
        if not reader.done():
            await reader.once(dice.choice([dice.randrange(1, 400), dice.randrange(400, 16000)]))
    while not reader.done():
        await reader.once(None)
    for one in ids:
        held, kept = reader.events[one], await asyncio.to_thread(reader.history, one)
        assert held == kept, f"{one}: {len(held)} events were sent, {len(kept)} are kept"
        assert [event["sequence"] for event in kept] == list(range(1, len(kept) + 1)), one
        assert len({event["event_id"] for event in kept}) == len(kept), f"{one}: an id stands twice"
    assert reader.unknown_types, "nothing came that this program does not know"
    print(
        f"websockets: {sum(map(len, reader.events.values()))} events of {len(ids)} executions over"
        f" {reader.connections} connections, {reader.replays} histories again,"
        f" unknown and kept: {', '.join(sorted(reader.unknown_types))}"
    )


async def bounded():
    await asyncio.wait_for(main(), 4 * PATIENCE)


if __name__ == "__main__":
    asyncio.run(bounded())
