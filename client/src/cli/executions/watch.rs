//! `reeve executions watch`: follows one execution to its end, or everything.

use std::time::Duration;

use reeve_protocol::batch::{Batch, Entry};
use reeve_protocol::id::{ExecutionId, Seq};
use reeve_protocol::stream::{FollowFrom, Op};

use crate::checkout;
use crate::cli::serve::duration;
use crate::cli::{Here, block_on, broker};
use crate::failure::{Exit, Failure, chain};
use crate::follow::{Follower, Offer};
use crate::link::Link;
use crate::live::Live;
use crate::ui::{Format, Ui};
use crate::watcher::{Watched, Watcher};

/// How long a cut connection is tried again, where nothing else is said.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often an execution that a new broker does not know is asked for again: its worker needs a
/// moment to come back.
const UNKNOWN_MAX: u32 = 40;

/// Follow executions as they go on
///
/// With an execution, follows it to its end: exits 0 when it succeeded, 1 when it failed, 130 when
/// it was cancelled, and 75 when it was cut off and may go on. Without one, follows everything.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct WatchArgs {
    /// The execution to follow
    id: Option<ExecutionId>,
    /// Only events after this position
    #[arg(long, value_name = "N", default_value_t = 0, requires = "id")]
    after: u64,
    /// How long to try again when cut off; 30s where nothing is said
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    patience: Option<Duration>,
}

pub(super) fn run(ui: &mut Ui, here: &Here, args: WatchArgs) -> Result<Exit, Failure> {
    block_on(async {
        let patience = args.patience.unwrap_or(PATIENCE);
        let link = broker::need(here, "executions watch").await?;
        let (follower, live) = match args.id {
            Some(execution) => {
                let after = Seq(args.after);
                (Follower::of([FollowFrom { execution, after }]), Live::of_one())
            }
            None => {
                // Everything has no end at which one document could be written.
                if ui.format == Format::Json {
                    ui.format = Format::Ndjson;
                }
                (Follower::of_all(), Live::of_all())
            }
        };
        let exit = follow(ui, here, follower, Some(link), (live, patience)).await?;
        if let (Format::Json, Some(id)) = (ui.format, args.id) {
            let mut link = broker::need(here, "executions watch").await?;
            let snapshot = link.ask(Op::Get { id }).await?;
            ui.json(&snapshot);
        }
        Ok(exit)
    })
}

/// Waits for the end of one execution and shows nothing of it.
pub(super) async fn end_of(
    ui: &mut Ui,
    here: &Here,
    follower: Follower,
    link: Option<Link>,
) -> Result<Exit, Failure> {
    let shown = std::mem::replace(&mut ui.format, Format::Json);
    let exit = follow(ui, here, follower, link, (Live::of_one(), PATIENCE)).await;
    ui.format = shown;
    exit
}

async fn follow(
    ui: &mut Ui,
    here: &Here,
    follower: Follower,
    link: Option<Link>,
    (live, patience): (Live, Duration),
) -> Result<Exit, Failure> {
    let place = here.place.clone();
    let discover = move || checkout::discover(&place).ok().and_then(checkout::Found::serving);
    let me = here.identity()?;
    let mut watcher = Watcher::new(discover, me, "executions watch", follower, patience);
    if let Some(link) = link {
        watcher = watcher.on(link);
    }
    let mut sight = Sight { live, exit: Exit::Ok, joined: false, unknown: 0 };
    loop {
        let watched = match tokio::time::timeout(Duration::ZERO, watcher.next()).await {
            Ok(watched) => watched,
            Err(_) => {
                // Nothing more is there at once: what was written is to be seen.
                ui.flush();
                watcher.next().await
            }
        };
        match watched {
            Watched::Offer(offer) => {
                if sight.take(ui, offer)? {
                    watcher.retry_unknown();
                }
            }
            Watched::Cut(error) => {
                ui.note(format_args!("{}; connecting again", chain(&error)));
            }
            Watched::Back => ui.note("connected again"),
            Watched::Lost(error) => {
                let cause = error.map(|error| chain(&error));
                let cause = cause.unwrap_or_else(|| "no broker serves this checkout".to_owned());
                return Err(Failure::new(Exit::CutOff, format!("cut off: {cause}"))
                    .hint("what was watched may go on; watch it again when a broker serves"));
            }
            Watched::Done => return Ok(sight.exit),
        }
        if ui.is_closed() {
            return Ok(Exit::Ok);
        }
    }
}

/// What was seen so far.
struct Sight {
    live: Live,
    exit: Exit,
    joined: bool,
    unknown: u32,
}

impl Sight {
    /// Shows an offer; returns whether to ask once more for an execution that nobody holds.
    fn take(&mut self, ui: &mut Ui, offer: Offer) -> Result<bool, Failure> {
        match offer {
            Offer::Joined { .. } => {
                self.joined = true;
                self.unknown = 0;
            }
            Offer::Events { id, batch } => self.events(ui, id, &batch)?,
            Offer::Gap { id, from, to, reason } => self.live.gap(ui, id, from, to, reason),
            Offer::Overlay { id, overlay } => self.live.overlay(ui, id, &overlay),
            Offer::End { state, .. } => self.exit = Exit::of_state(state),
            Offer::Unknown { id } if self.joined && self.unknown < UNKNOWN_MAX => {
                if self.unknown == 0 {
                    ui.note(format_args!(
                        "the broker does not know {id} yet; waiting for its worker"
                    ));
                }
                self.unknown += 1;
                return Ok(true);
            }
            Offer::Unknown { id } if self.joined => {
                let message = format!("cut off: the broker does not know {id} any more");
                return Err(Failure::new(Exit::CutOff, message).hint("it may go on nevertheless"));
            }
            Offer::Unknown { id } => {
                return Err(Failure::new(Exit::NotFound, format!("no execution {id} is known"))
                    .hint("`reeve executions list` shows what is remembered"));
            }
        }
        Ok(false)
    }

    fn events(&self, ui: &mut Ui, id: ExecutionId, batch: &Batch) -> Result<(), Failure> {
        let entries = batch.entries().map_err(|error| {
            Failure::new(Exit::Failed, format!("events of {id} cannot be read: {error}"))
        })?;
        let mut first = batch.first();
        for entry in entries {
            self.live.entry(ui, id, Some(first), &entry);
            first = first.plus(match &entry {
                Entry::Event(_) => 1,
                Entry::Log(chunk) => u64::from(chunk.lines),
            });
        }
        Ok(())
    }
}
