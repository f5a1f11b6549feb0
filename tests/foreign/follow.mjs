// A reader of the live channel that knows only its documentation and the library `ws`.
//
//     REEVE_TOKEN=… node follow.mjs URL SEED CUTS ID…
//
// Follows the executions at once. A proxy of its own breaks the connection after some bytes, in a
// handshake, between two frames or within one; the reader comes back with a cursor per execution
// and no epoch, as a client that knows of none. At the end it must hold what the history over HTTP
// holds: equal, dense, nothing twice. Exits 0 if so.

import assert from "node:assert/strict";
import http from "node:http";
import net from "node:net";
import WebSocket from "ws";

const PATIENCE = 60_000;
// What this program has a use for. Everything else is kept and passed by.
const KNOWN = new Set(["execution.created", "execution.started", "execution.log", "execution.completed"]);
const FINAL = new Set(["execution.completed", "execution.failed", "execution.cancelled"]);

const [url, seed, cuts, ...ids] = process.argv.slice(2);
const { port } = new URL(url);
const headers = { Authorization: `Bearer ${process.env.REEVE_TOKEN}` };
const events = new Map(ids.map((id) => [id, []]));
const over = new Set();
const unknownTypes = new Set();
let connections = 0;

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const cursors = (some) => some.map((id) => `${id}:${events.get(id).length}`);
const done = () => over.size === ids.length;

// The same numbers for the same seed (mulberry32).
function dice(state) {
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

// Hands bytes on, and resets the connection after `budget` of them.
async function cuttingProxy(budget) {
  const sockets = new Set();
  const server = net.createServer((client) => {
    const broker = net.connect({ port, host: "127.0.0.1" });
    let left = budget;
    const cut = () => [client, broker].forEach((socket) => socket.resetAndDestroy());
    for (const socket of [client, broker]) {
      sockets.add(socket);
      socket.on("error", cut);
      socket.on("close", cut);
    }
    client.on("data", (data) => broker.write(data));
    broker.on("data", (data) => {
      if (data.length < left) {
        left -= data.length;
        client.write(data);
      } else {
        broker.pause();
        client.write(data.subarray(0, left), cut);
      }
    });
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  const close = () => {
    sockets.forEach((socket) => socket.destroy());
    server.close();
  };
  return { port: server.address().port, close };
}

function take(document) {
  const { type } = document;
  assert.notEqual(type, "stream.lagged", `something was not shown: ${JSON.stringify(document)}`);
  if (!type.startsWith("execution.")) {
    if (!["stream.ready", "stream.subscribed"].includes(type)) unknownTypes.add(type);
    return;
  }
  const id = document.execution_id;
  const held = events.get(id);
  assert.equal(document.sequence, held.length + 1, `${id}: out of order`);
  held.push(document);
  if (FINAL.has(type)) over.add(id);
  if (!KNOWN.has(type)) unknownTypes.add(type);
}

// Connects, and reads until everything is over or the connection is.
async function once(budget) {
  const proxy = await cuttingProxy(budget);
  const query = cursors(ids).map((cursor) => `execution=${cursor}`).join("&");
  const socket = new WebSocket(`${url.replace("http", "ws")}/events?${query}`, {
    headers,
    perMessageDeflate: false,
    createConnection: () => net.connect({ port: proxy.port, host: "127.0.0.1" }),
  });
  let closing = false;
  let failure;
  await new Promise((ended) => {
    let first = true;
    socket.on("unexpected-response", (_, response) => {
      if (![503, 429].includes(response.statusCode)) failure = new Error(`status ${response.statusCode}`);
      socket.terminate();
    });
    socket.on("error", () => {});
    socket.on("open", () => (connections += 1));
    socket.on("message", (data) => {
      try {
        const document = JSON.parse(data);
        assert.equal(document.type === "stream.ready", first, "stream.ready comes first, and once");
        assert.notEqual(document.type, "stream.error", data.toString());
        first = false;
        take(document);
        const missing = document.unknown ?? [];
        if (missing.length > 0) {
          // A broker that is new here learns of them in a moment.
          setTimeout(() => {
            const asked = { type: "subscribe", executions: cursors(missing) };
            if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(asked));
          }, 50);
        }
        if (done() && !closing) {
          closing = true;
          socket.ping("still there?");
        }
      } catch (error) {
        failure = error;
        socket.terminate();
      }
    });
    socket.on("pong", (data) => {
      if (data.toString() === "still there?") socket.close(1000, "enough");
      else failure = new Error(`a pong of ${data}`);
    });
    socket.on("close", (code) => {
      if (closing && code !== 1000) failure ??= new Error(`closed with ${code}`);
      ended();
    });
  });
  proxy.close();
  if (failure) throw failure;
  await pause(50);
}

// Asks over HTTP, one request per connection.
function get(target) {
  return new Promise((good, bad) => {
    http
      .get(`${url}${target}`, { headers, agent: false }, (answer) => {
        let text = "";
        answer.setEncoding("utf8");
        answer.on("data", (part) => (text += part));
        answer.on("end", () => (answer.statusCode === 200 ? good(JSON.parse(text)) : bad(new Error(text))));
      })
      .on("error", bad);
  });
}

async function history(id) {
  const all = [];
  for (let after = 0; ; ) {
    const page = await get(`/api/v1/executions/events?id=${id}&after=${after}&limit=50`);
    all.push(...page.events);
    after = page.last_sequence;
    if (!page.more) return all;
  }
}

setTimeout(() => {
  console.error(`gave up; at ${cursors(ids)}`);
  process.exit(1);
}, 4 * PATIENCE).unref();

const roll = dice(Number(seed));
for (let cut = 0; cut < Number(cuts) && !done(); cut += 1) {
  await once(roll() < 0.5 ? 1 + Math.floor(roll() * 400) : 400 + Math.floor(roll() * 16_000));
}
while (!done()) await once(Infinity);
for (const id of ids) {
  const [held, kept] = [events.get(id), await history(id)];
  assert.deepEqual(held, kept, `${id}: what was sent is what is kept`);
  kept.forEach((event, at) => assert.equal(event.sequence, at + 1, `${id}: dense`));
  assert.equal(new Set(kept.map((event) => event.event_id)).size, kept.length, `${id}: an id stands twice`);
}
assert.ok(unknownTypes.size > 0, "nothing came that this program does not know");
const total = [...events.values()].reduce((sum, held) => sum + held.length, 0);
console.log(
  `ws: ${total} events of ${ids.length} executions over ${connections} connections,` +
    ` unknown and kept: ${[...unknownTypes].sort().join(", ")}`,
);
