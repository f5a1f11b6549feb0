//! What a process writes: all of it, in order, clean and bounded.

use std::process::Stdio;

use reeve_tests::{lives, peak_resident, until};
use serde_json::{Value, json};

use crate::{checkout, id_of, lines_of, pid_in, shell};

const MIB: u64 = 1 << 20;

#[test]
fn a_hundred_thousand_lines_arrive_in_order_and_are_kept_so_heavy() {
    let checkout = checkout(&shell("lines", "seq 1 100000", ""));
    let _broker = checkout.serve(&[("max_page", "5000")]);
    let ran = checkout.run(["run", "lines"]);
    let expected: Vec<String> = (1..=100_000).map(|n| n.to_string()).collect();
    assert!(ran.stdout.lines().eq(expected.iter()), "the run prints every line in order");
    let id = checkout.list()[0]["id"].as_str().expect("it is listed").to_owned();
    assert!(lines_of(&checkout.history(&id), "stdout") == expected, "and so does the history");
}

#[test]
fn a_line_that_never_ends_is_one_line_that_is_cut() {
    let script = "head -c 20000000 /dev/zero | tr '\\0' x";
    let checkout = checkout(&shell("endless", script, ""));
    let _broker = checkout.serve(&[]);
    let ran = checkout.run(["run", "endless"]);
    assert_eq!((ran.stdout.lines().count(), ran.code()), (1, 0));
    let history = checkout.history(id_of(&checkout.list()[0]));
    let logs: Vec<&Value> =
        history.iter().filter(|event| event["type"] == "execution.log").collect();
    assert_eq!(logs.len(), 1);
    assert_eq!(logs[0]["data"]["cut"], true);
    let message = logs[0]["data"]["message"].as_str().expect("a text");
    assert_eq!((message.chars().count(), message.ends_with("x…")), (2_000, true));
    assert!(ran.stdout == format!("{message}\n"), "it is printed as it is kept");
}

#[test]
fn a_line_of_exactly_the_bound_is_whole_and_one_more_is_cut() {
    let script = "printf '%0100d\\n%0101d\\n' 0 0";
    let checkout = checkout(&(shell("bound", script, "") + "[limits]\nmax_line_chars = 100\n"));
    let _broker = checkout.serve(&[]);
    checkout.run(["run", "bound"]);
    let lines = lines_of(&checkout.history(id_of(&checkout.list()[0])), "stdout");
    assert_eq!(lines, ["0".repeat(100), "0".repeat(99) + "…"]);
}

#[test]
fn a_line_is_seen_while_its_process_goes_on_however_long_it_may_wait_for_company() {
    let script = "echo begun; until test -e go; do sleep 0.01; done";
    for linger in ["0ms", "1s"] {
        let checkout = checkout(&shell("slow", script, ""));
        let _broker = checkout.serve(&[("linger", linger)]);
        let run = checkout.spawn(["run", "slow"]);
        run.until_stdout("begun");
        let running = checkout.until_state("slow", "running");
        until("the line to be kept", || {
            (lines_of(&checkout.history(id_of(&running)), "stdout") == ["begun"]).then_some(())
        });
        checkout.write("go", "");
        assert_eq!(run.wait().code(), 0);
    }
}

#[test]
fn random_bytes_do_nothing_to_anybody() {
    let checkout = checkout(&shell("noise", "head -c 1048576 /dev/urandom", ""));
    let _broker = checkout.serve(&[]);
    let output = checkout.command(["run", "noise"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).expect("what is printed is UTF-8");
    let bad = text.chars().find(|it| it.is_control() && !matches!(it, '\n' | '\t'));
    assert_eq!(bad, None);
    let watched = checkout.run(["executions", "watch", id_of(&checkout.list()[0])]);
    assert_eq!(watched.stdout, text, "a watcher is shown the same");
}

#[test]
fn what_would_act_on_a_terminal_is_gone_and_markup_is_text() {
    let script = r"printf '\033[31mred\033[0m \033]0;title\007end\n'
printf '10%%\r50%%\r100%%\n'
printf '[red] <script> \033]8;;http://x\033\\link\n'
printf 'a\tb\000c\342\200\256d\n'
printf 'dos\r\n'
printf 'no newline'";
    let checkout = checkout(&shell("codes", script, ""));
    let _broker = checkout.serve(&[]);
    let ran = checkout.run(["run", "codes"]);
    let lines = ["red end", "100%", "[red] <script> link", "a\tb c⟦U+202E⟧d", "dos", "no newline"];
    assert_eq!(ran.stdout, lines.join("\n") + "\n");
    assert_eq!(lines_of(&checkout.history(id_of(&checkout.list()[0])), "stdout"), lines);
}

#[test]
fn who_holds_the_pipe_open_delays_no_end() {
    let checkout = checkout(&shell("holder", "sleep 631 & echo $! > pid; echo done", ""));
    let _broker = checkout.serve(&[]);
    let ran = checkout.run(["run", "holder"]);
    assert_eq!((ran.stdout.as_str(), ran.code()), ("done\n", 0), "{ran:?}");
    let pid = pid_in(&checkout, "pid");
    assert!(!lives(pid), "what outlives its execution is ended");
    let shown = checkout.show(id_of(&checkout.list()[0]));
    let finding = &shown["diagnostics"][0];
    assert_eq!(finding["code"], "leftover");
    assert!(finding["summary"].as_str().is_some_and(|it| it.contains(&pid.to_string())));
}

#[test]
fn the_middle_of_a_long_log_is_dropped_and_told_as_a_range() {
    let checkout = checkout(&shell("long", "seq -f 'line %06g' 1 30000", ""));
    let _broker = checkout.serve(&[("max_log_bytes", "65536")]);
    let ran = checkout.run(["run", "long"]);
    assert_eq!(ran.stdout.lines().count(), 30_000, "who runs it sees all of it");
    let id = checkout.list()[0]["id"].as_str().expect("it is listed").to_owned();
    let page = checkout.json(["executions", "events", &id]);
    assert_eq!(page["truncated"], true);
    let history = page["events"].as_array().expect("a list").clone();
    let lines = lines_of(&history, "stdout");
    assert_eq!(lines.first().map(String::as_str), Some("line 000001"));
    assert_eq!(lines.last().map(String::as_str), Some("line 030000"));
    let bytes: usize = lines.iter().map(String::len).sum();
    assert!((16 << 10..128 << 10).contains(&bytes), "{bytes} bytes are kept");
    let mut positions: Vec<u64> =
        history.iter().filter_map(|event| event["sequence"].as_u64()).collect();
    for gap in page["gaps"].as_array().expect("gaps are told") {
        let end = |name: &str| gap[name].as_u64().expect("a range has two ends");
        assert_eq!(gap["reason"], "retention");
        positions.extend(end("from")..=end("to"));
    }
    positions.sort_unstable();
    assert!(positions.iter().copied().eq(1..=positions.len() as u64), "no hole and no repeat");
    assert_eq!(page["head"], json!(positions.len()));
    assert_eq!(checkout.show(&id)["events_truncated"], true);
}

#[test]
fn a_flood_of_output_costs_no_memory_heavy() {
    let script = "head -c 100000000 /dev/zero | tr '\\0' x | fold -w 199";
    let checkout = checkout(&shell("flood", script, ""));
    let broker = checkout.serve(&[]);
    let before = peak_resident(broker.pid());
    let mut run = checkout.command(["run", "flood"]);
    let mut run = run.stdout(Stdio::null()).spawn().expect("it starts");
    let mut worker = 0;
    let status = until("the flood to end", || {
        worker = worker.max(peak_resident(run.id()));
        run.try_wait().expect("it can be looked at")
    });
    assert!(status.success());
    assert!(worker < 128 * MIB, "the worker took {} MiB", worker / MIB);
    let grown = peak_resident(broker.pid()) - before;
    assert!(grown < 64 * MIB, "the broker grew by {} MiB", grown / MIB);
    assert_eq!(checkout.list()[0]["state"], "succeeded");
}

#[test]
fn progress_without_end_is_thinned_and_its_last_value_kept() {
    let script = r#"i=0; while [ $i -lt 5000 ]; do i=$((i+1))
echo "{\"type\":\"execution.progress\",\"data\":{\"current\":$i,\"total\":5000}}"
done > /dev/fd/$REEVE_EVENTS_FD"#;
    let checkout = checkout(&shell("counts", script, ""));
    let _broker = checkout.serve(&[]);
    assert_eq!(checkout.run(["run", "counts"]).code(), 0);
    let history = checkout.history(id_of(&checkout.list()[0]));
    let values: Vec<u64> = history
        .iter()
        .filter(|event| event["type"] == "execution.progress")
        .filter_map(|event| event["data"]["current"].as_u64())
        .collect();
    assert!(values.len() < 1_000 && values.is_sorted(), "{} of 5000 are told", values.len());
    assert_eq!(values.last(), Some(&5_000));
}

#[test]
fn an_output_of_many_values_is_shown_or_told_as_too_large() {
    let script = r#"{ printf '{"type":"execution.output","data":['; yes 0 | head -n $N | paste -sd,; printf ']}\n'; } | tr -d '\n' > /dev/fd/$REEVE_EVENTS_FD"#;
    let checkout = checkout(&shell("values", script, "env = { allow = ['N'] }"));
    let _broker = checkout.serve(&[]);
    for (n, whole) in [(10_000, true), (40_000, false), (49_960, false)] {
        let mut run = checkout.command(["run", "values"]);
        let ran = run.env("N", n.to_string()).output().expect("it runs");
        assert!(ran.status.success(), "{ran:?}");
        let shown = checkout.show(id_of(&checkout.list()[0]));
        let output = &shown["output"];
        assert_eq!(output.as_array().map(Vec::len), whole.then_some(n), "{n}");
        assert_eq!(output["withheld"].is_null(), whole, "{n}");
        let history = checkout.history(id_of(&shown));
        assert_eq!(&history[history.len() - 1]["data"]["output"], output, "{n}");
    }
}

#[test]
fn a_reader_that_pauses_costs_no_lease_and_a_cancel_still_arrives() {
    let manifest = shell("much", "echo $$ > pid; seq 1 700000", "");
    let checkout = checkout(&(manifest + "[limits]\nsilence = '1s'\nheartbeat = '100ms'\n"));
    let _broker = checkout.serve(&[]);
    let mut command = checkout.command(["run", "much"]);
    let mut run = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary under test starts");
    let running = checkout.until_state("much", "running");
    let id = id_of(&running).to_owned();
    let start = reeve_tests::now();
    until("several silences to pass", || {
        assert_eq!(checkout.show(&id)["state"], "running", "it has its lease");
        (start.elapsed().as_secs() >= 3).then_some(())
    });
    checkout.run(["executions", "cancel", &id]);
    let cancelled = until("its end", || {
        let shown = checkout.show(&id);
        (shown["state"] != "running" && shown["state"] != "cancelling").then_some(shown)
    });
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    drop(run.stdout.take());
    let status = until("the run to leave", || run.try_wait().expect("it can be seen"));
    assert_eq!(status.code(), Some(130));
}

#[test]
fn a_reader_that_pauses_gets_everything_when_it_goes_on_and_an_interrupt_leaves_without_it() {
    let checkout = checkout(&shell("much", "echo $$ > pid; seq 1 700000", ""));
    let mut command = checkout.command(["run", "much"]);
    let start = |command: &mut std::process::Command| {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().expect("the binary under test starts")
    };
    let run = start(&mut command);
    pid_in(&checkout, "pid");
    let ran = run.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(text.lines().eq((1..=700_000).map(|n| n.to_string())), "all of it, in order");
    std::fs::remove_file(checkout.root().join("pid")).expect("it is there");
    let mut stuck = start(&mut command);
    let pid = pid_in(&checkout, "pid");
    until("the run to end, by interrupts", || {
        let raw = rustix::process::Pid::from_raw(stuck.id().try_into().expect("a pid"));
        let _ = rustix::process::kill_process(raw.expect("a pid"), rustix::process::Signal::INT);
        std::thread::sleep(std::time::Duration::from_millis(50));
        stuck.try_wait().expect("it can be seen")
    });
    assert!(!lives(pid));
}
