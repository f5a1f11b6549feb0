//! `reeve capabilities`: what is declared.

use reeve_broker::trust;
use reeve_protocol::Descriptor;
use reeve_protocol::id::CapabilityId;
use reeve_protocol::stream::Op;
use serde_json::Value;

use super::registry::{self, Declared};
use super::{Here, block_on, broker, plan};
use crate::failure::{Exit, Failure};
use crate::manifest_file::ManifestFileError;
use crate::render;
use crate::ui::{Format, Paint, Ui};

/// See what is declared
#[derive(Debug, clap::Subcommand)]
pub(super) enum CapabilitiesCommand {
    /// List what can be run
    List,
    /// Show one capability
    Show {
        /// The capability to show
        id: CapabilityId,
    },
}

pub(super) fn run(ui: &mut Ui, here: &Here, command: CapabilitiesCommand) -> Result<Exit, Failure> {
    let mut answer = declared(ui, here)?;
    let digest = answer["digest"].as_str().unwrap_or_default();
    let standing = trust::standing(&here.place, digest).as_str();
    answer["trust"] = standing.into();
    let list_of = answer["capabilities"].clone();
    let descriptors: Vec<Descriptor> = serde_json::from_value(list_of).map_err(|error| {
        Failure::new(Exit::Failed, format!("the broker's answer cannot be read: {error}"))
    })?;
    for problem in answer["problems"].as_array().into_iter().flatten() {
        ui.warn(problem.as_str().unwrap_or_default());
    }
    match command {
        CapabilitiesCommand::List => {
            list(ui, &answer, &descriptors);
            let any = descriptors.iter().any(|one| one.process.is_some());
            if any && ui.format == Format::Text && standing != "trusted" {
                ui.note(format_args!(
                    "the manifest is {standing}; `reeve trust` lets the broker run it for others"
                ));
            }
        }
        CapabilitiesCommand::Show { id } => {
            let found = descriptors
                .iter()
                .find(|descriptor| descriptor.id == id)
                .ok_or_else(|| plan::not_declared(&id, descriptors.iter().map(|it| &it.id)))?;
            show(ui, found);
        }
    }
    Ok(Exit::Ok)
}

/// Asks the broker, and reads the manifest where none serves.
fn declared(ui: &mut Ui, here: &Here) -> Result<Value, Failure> {
    let answer = block_on(async {
        let Some(mut link) = broker::connect(here, "capabilities").await? else { return Ok(None) };
        Ok(Some(link.ask(Op::Capabilities {}).await?))
    })?;
    if let Some(answer) = answer {
        return Ok(answer);
    }
    let Declared { loaded, warnings, error } = registry::read(&here.place, &here.handlers);
    warnings.iter().for_each(|warning| ui.warn(warning));
    match error {
        None => {}
        Some(ManifestFileError::Missing(_)) => {
            ui.note("there is no reeve.toml; `reeve init` makes one");
        }
        Some(error) => return Err(error.into()),
    }
    Ok(registry::told(&loaded))
}

fn list(ui: &mut Ui, answer: &Value, descriptors: &[Descriptor]) {
    match ui.format {
        Format::Json => ui.json(answer),
        Format::Ndjson => descriptors.iter().for_each(|descriptor| ui.json(descriptor)),
        Format::Text => {
            let rows: Vec<Vec<String>> = descriptors
                .iter()
                .map(|it| {
                    let kind = format!("{:?}", it.kind).to_lowercase();
                    vec![it.id.to_string(), kind, it.effect.to_string(), it.title.clone()]
                })
                .collect();
            let columns = ui.columns().unwrap_or(render::COLUMNS);
            let lines = render::table(&["ID", "KIND", "EFFECT", "TITLE"], &rows, columns);
            lines.into_iter().for_each(|line| ui.line(line));
        }
    }
}

fn show(ui: &mut Ui, descriptor: &Descriptor) {
    if ui.format != Format::Text {
        ui.json(descriptor);
        return;
    }
    let id = ui.paint(Paint::Strong, descriptor.id.as_str());
    ui.line(format_args!("{id}: {}", descriptor.title));
    if !descriptor.description.is_empty() {
        ui.line(&descriptor.description);
    }
    let yes = |is: bool| if is { "yes" } else { "no" };
    ui.line(format_args!("effect:      {}", descriptor.effect));
    ui.line(format_args!("cancellable: {}", yes(descriptor.cancellable)));
    ui.line(format_args!("idempotent:  {}", yes(descriptor.idempotent)));
    if let Some(timeout) = descriptor.timeout() {
        ui.line(format_args!("timeout:     {}", render::took(timeout)));
    }
    if let Some(process) = &descriptor.process {
        ui.line(format_args!("command:     {:?}", process.command));
        ui.line(format_args!("directory:   {}", process.cwd));
    }
    ui.line(format_args!("declared:    {}", descriptor.provenance));
    for (name, schema) in
        [("input", Some(&descriptor.input)), ("output", descriptor.output.as_ref())]
    {
        let Some(schema) = schema else { continue };
        let schema = serde_json::to_string_pretty(schema).unwrap_or_default();
        let schema = render::inert_json(&schema);
        ui.line(format_args!("{name}:"));
        schema.lines().for_each(|line| ui.line(format_args!("  {line}")));
    }
}
