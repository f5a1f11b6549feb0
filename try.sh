#!/bin/sh
# Runs the main job on a checkout: builds reeve, writes a manifest if there is none, starts the
# broker, runs a capability as a worker, follows it, and says how to watch.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
checkout=${1:-$PWD}
cargo build --quiet --release --workspace --manifest-path "$here/Cargo.toml"
reeve=${CARGO_TARGET_DIR:-$here/target}/release/reeve
cd "$checkout"
[ -e reeve.toml ] || "$reeve" init
"$reeve" serve >/dev/null 2>&1 &
tries=0
until "$reeve" status 2>/dev/null | grep -q '^serving: true'; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { echo "the broker did not come up: run $reeve serve" >&2; exit 1; }
    sleep 0.05
done
capability=${2:-$(sed -n 's/^\[capability\."\{0,1\}\([a-z][a-z0-9_.-]*\)"\{0,1\}\]$/\1/p' reeve.toml | head -n 1)}
echo "running $capability; watch it from another terminal:" >&2
echo "    cd $checkout && $reeve executions watch" >&2
code=0
"$reeve" run "$capability" || code=$?
"$reeve" executions list
echo "the broker goes on; end it with: $reeve stop" >&2
exit "$code"
