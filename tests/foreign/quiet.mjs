// A reader that has nothing to read: the channel must say by itself that it lives.
//
//     REEVE_TOKEN=… node quiet.mjs URL ID
//
// Follows an execution that is over, from its end. Waits for the heartbeat and for the ping that
// goes with it (the library answers it), sends a frame that makes no sense and one that asks for
// an answer, and says goodbye. Exits 0 if the broker did its part of all of it.

import assert from "node:assert/strict";
import WebSocket from "ws";

const [url, id] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${process.env.REEVE_TOKEN}` };
const socket = new WebSocket(`${url.replace("http", "ws")}/events?execution=${id}:1000000`, { headers });
const seen = [];
let pinged = false;

setTimeout(() => {
  console.error(`gave up; seen were ${seen.join(", ")}, pinged: ${pinged}`);
  process.exit(1);
}, 120_000).unref();

function next() {
  if (pinged && seen.includes("stream.heartbeat") && !seen.includes("stream.error")) socket.send("{}");
}

socket.on("ping", () => {
  pinged = true;
  next();
});
socket.on("message", (data) => {
  const document = JSON.parse(data);
  seen.push(document.type);
  if (document.type === "stream.heartbeat") next();
  if (document.type === "stream.error") socket.send('{"type": "ping", "nonce": "n-1"}');
  if (document.type === "stream.pong") {
    assert.equal(document.nonce, "n-1");
    socket.close(1000, "enough");
  }
});
socket.on("error", (error) => {
  throw error;
});
socket.on("close", (code) => {
  assert.equal(code, 1000);
  // A cursor ahead of the history is told so; then, beside how it stands, nothing but signs of life.
  assert.deepEqual(seen.filter((type) => type !== "stream.overlay"), [
    "stream.ready", "stream.lagged", "stream.heartbeat", "stream.error", "stream.pong",
  ]);
  console.log(`ws: a quiet channel said ${seen.join(", ")}, and pinged`);
});
