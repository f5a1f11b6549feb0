//! The drive's part about processes: starting one, reading it, ending its tree.

use std::ffi::{OsStr, OsString};

use reeve_protocol::event::ChildEvent;
use reeve_protocol::{Fault, Kind, Now, peer};
use rustix::process::Signal;

use super::call::ProcessCall;
use super::verdict::{self, Stop};
use super::{Drive, LOOK, NAMED_MAX, Phase};
use crate::clock;
use crate::process::env::{self, Mark};
use crate::process::escalate::{self, Ask};
use crate::process::{ChildOutput, Member, Running, Spec, resolve_program};

impl Drive<'_> {
    /// Starts the process; `declared` is the program as its capability names it.
    pub(super) fn launch(&mut self, spec: Spec, declared: &OsStr) {
        match Running::spawn(spec, clock::wall) {
            Ok(mut running) => {
                let leader = running.tree().leader();
                let pgid = u32::try_from(leader.pid).expect("a pid is positive");
                let tree = peer::Tree { pgid, start_ticks: leader.start_ticks };
                let now = self.clock.now();
                self.session.handle_tree(tree, now);
                self.by_now = self.call.work.timeout().map(|timeout| now.mono + timeout);
                self.sampler.start(now.mono);
                self.phase = Phase::Running(Box::new(running));
            }
            Err(error) => {
                let error = verdict::not_started(declared, &error).about(self.call.execution);
                self.finish(Kind::Failed { error, receipt: None });
            }
        }
    }

    /// Returns what the process is started with; refuses what cannot run at all.
    pub(super) fn spec(&self, process: &ProcessCall) -> Result<(Spec, OsString), Box<Fault>> {
        let mark = Mark {
            execution: self.call.execution,
            fence: self.session.fence().unwrap_or_default(),
            checkout: process.checkout.as_os_str(),
        };
        let caller = process.env_caller.iter().cloned();
        let env = env::environment(caller, &process.env_allow, &process.env_set, mark);
        let path = env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
        let refuse =
            |message: String| Box::new(verdict::unusable(message).about(self.call.execution));
        if !process.cwd.is_dir() {
            return Err(refuse(format!("{} is not a directory", shown(process))));
        }
        let real = std::fs::canonicalize(&process.cwd).unwrap_or_else(|_| process.cwd.clone());
        let root = std::fs::canonicalize(&process.checkout);
        if root.is_ok_and(|root| !real.starts_with(root)) {
            let cwd = shown(process);
            return Err(refuse(format!("{cwd} leads out of the checkout")));
        }
        let program: &OsStr = &process.program;
        let program = resolve_program(program, path, &process.cwd)
            .map_err(|error| refuse(verdict::no_program(&process.program, &error)))?;
        let spec = Spec {
            program,
            args: process.args.clone(),
            cwd: process.cwd.clone(),
            env,
            stdin: process.stdin.clone(),
            output: process.output,
            events: process.events,
            line_chars: self.call.limits.max_line_chars,
            scrubber: self.scrubber.clone(),
            launcher: process.launcher.clone(),
            cgroup: process.cgroup,
        };
        Ok((spec, process.program.clone()))
    }

    pub(super) fn on_child(&mut self, output: ChildOutput, now: Now) {
        match output {
            ChildOutput::Log(chunk) => self.note(|session| session.emit_log(chunk, now)),
            ChildOutput::Said(events) => {
                for event in events {
                    match event {
                        ChildEvent::Kind(kind) => self.note(|session| session.emit(kind, now)),
                        ChildEvent::Output(value) => self.output = Some(value),
                    }
                }
            }
            ChildOutput::Exited(exit) => self.exit = Some(exit),
        }
    }

    /// Does to the tree what the escalation asks for.
    pub(super) async fn escalate(&mut self, now: Now) {
        while let Some(effect) = self.escalation.poll_effect() {
            let Phase::Running(running) = &mut self.phase else { return };
            match effect {
                escalate::Effect::SignalTree(Ask::Term) => running.tree().signal(Signal::TERM),
                escalate::Effect::SignalTree(Ask::Int) => running.tree().signal(Signal::INT),
                escalate::Effect::KillTree => {
                    if running.tree().kill().await.is_empty() {
                        self.escalation.handle_empty();
                    }
                }
                escalate::Effect::Done if running.tree().is_empty() => {}
                escalate::Effect::Done => {
                    let Phase::Running(running) = std::mem::replace(&mut self.phase, Phase::Over)
                    else {
                        return;
                    };
                    let survivors = running.into_tree().leave();
                    self.conclude(survivors, now);
                }
            }
        }
    }

    /// The first process has ended and was read out.
    pub(super) async fn on_end(&mut self, now: Now) {
        let Phase::Running(running) = std::mem::replace(&mut self.phase, Phase::Over) else {
            return;
        };
        let tree = running.into_tree();
        let until = match self.stop {
            Stop::No => now.mono,
            // Asked to stop: the others have what is left of the grace.
            Stop::Cancelled | Stop::TimedOut => self.escalation.poll_timeout().unwrap_or(now.mono),
        };
        self.phase = Phase::Ending { tree, until, look_at: now.mono };
    }

    /// Ends what is left of the tree, when its time is over.
    pub(super) async fn on_look(&mut self, now: Now) {
        let Phase::Ending { mut tree, until, .. } = std::mem::replace(&mut self.phase, Phase::Over)
        else {
            return;
        };
        let members = tree.members();
        if !members.is_empty() && now.mono < until {
            let look_at = (now.mono + LOOK).min(until);
            self.phase = Phase::Ending { tree, until, look_at };
            return;
        }
        if !members.is_empty() && self.stop == Stop::No {
            let summary = format!("processes outlived it and were ended: {}", named(&members));
            self.diagnose("leftover", summary, now);
        }
        let survivors = if members.is_empty() { members } else { tree.kill().await };
        if !survivors.is_empty() {
            tree.leave();
        }
        self.conclude(survivors, self.clock.now());
    }

    /// Nothing more can be done to the tree: reports it and the end.
    fn conclude(&mut self, survivors: Vec<Member>, now: Now) {
        if !survivors.is_empty() {
            self.survived = true;
            let summary = format!("processes could not be ended: {}", named(&survivors));
            self.diagnose("survivor", summary, now);
        }
        let names = survivors.iter().map(|member| format!("{} {}", member.pid, member.comm));
        let mut names: Vec<String> = names.collect();
        names.iter_mut().for_each(|name| self.scrubber.text(name));
        self.session.handle_released(names, now);
        let timeout = self.call.work.timeout();
        let end = verdict::of(self.exit, self.stop, timeout, self.output.take());
        self.finish(verdict::about(end, self.call.execution));
    }
}

/// Returns the directory of a process as others may see it: relative to the checkout.
fn shown(process: &ProcessCall) -> String {
    let relative = process.cwd.strip_prefix(&process.checkout).unwrap_or(&process.cwd);
    let shown = relative.display().to_string();
    if shown.is_empty() { ".".to_owned() } else { shown }
}

fn named(members: &[Member]) -> String {
    let named: Vec<String> = members
        .iter()
        .take(NAMED_MAX)
        .map(|member| format!("{} (pid {})", member.comm, member.pid))
        .collect();
    let more = members.len().saturating_sub(NAMED_MAX);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    named.join(", ") + &tail
}
