//! `reeve token`: prints the token of this checkout's HTTP surface.

use reeve_broker::seat::private_dir;
use reeve_broker::token::{Scopes, Token};
use serde_json::json;

use super::Here;
use crate::failure::{Exit, Failure, chain};
use crate::ui::{Format, Ui};

/// Print the token that HTTP asks for
///
/// It is sent as `Authorization: Bearer TOKEN`, outlives brokers, and allows everything unless
/// scopes are named. Whoever has it can do what you can do here.
#[derive(Debug, clap::Args)]
pub(super) struct TokenArgs {
    /// Print a token that allows these only: observe, start, report, confirm, admin
    #[arg(long, value_name = "SCOPES")]
    scope: Option<Scopes>,
    /// Make a new secret first, which ends every token printed so far
    #[arg(long)]
    rotate: bool,
}

pub(super) fn run(ui: &mut Ui, here: &Here, args: TokenArgs) -> Result<Exit, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::new(Exit::Failed, chain(error));
    let state_dir = &here.place.state_dir;
    private_dir(state_dir).map_err(|error| failed(&error))?;
    let made = if args.rotate { Token::rotate(state_dir) } else { Token::ensure(state_dir) };
    let secret = made.map_err(|error| failed(&error))?;
    let token = match args.scope {
        None => secret.whole().to_owned(),
        Some(scopes) => secret.scoped(scopes).map_err(|error| failed(&error))?,
    };
    let scopes = args.scope.unwrap_or(Scopes::ALL).to_string();
    if ui.format == Format::Text {
        ui.line(token);
    } else {
        ui.json(&json!({ "token": token, "scopes": scopes }));
    }
    Ok(Exit::Ok)
}
