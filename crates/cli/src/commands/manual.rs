//! `bulla man` and `bulla version`, for packages. The pages are generated from the definition of the command line.

use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;
use serde_json::json;

use crate::args::{self, Cli};
use crate::failure::{Failure, Outcome};
use crate::output::{Done, Output, fields};

/// Prints the manual, or writes one page per command.
pub fn man(args: &args::Man, output: &mut Output) -> Outcome<Done> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    if let Some(dir) = &args.out {
        let pages = write_pages(dir, &root)?;
        return Ok(Done::ok(fields(json!({"pages": pages}))));
    }
    let page = page(&root).map_err(|e| Failure::io("cannot create the manual page", &e))?;
    document(output, "man", &page)
}

/// The page of one command. `clap_mangen::Man::render` would put the arguments below the options; readers look for them first.
fn page(command: &clap::Command) -> std::io::Result<Vec<u8>> {
    let page = Man::new(command.clone());
    let mut out = Vec::new();
    page.render_title(&mut out)?;
    page.render_name_section(&mut out)?;
    page.render_synopsis_section(&mut out)?;
    page.render_description_section(&mut out)?;
    if command.get_positionals().any(|arg| !arg.is_hide_set()) {
        let arguments = command.clone().mut_args(|arg| match arg.is_positional() {
            true => arg.help_heading("Arguments"),
            false => arg.hide(true),
        });
        Man::new(arguments).render_options_section(&mut out)?;
    }
    let options = command.clone().mut_args(|arg| {
        if arg.is_positional() {
            arg.hide(true)
        } else {
            arg
        }
    });
    Man::new(options).render_options_section(&mut out)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut out)?;
    }
    if command.get_after_help().is_some() {
        page.render_extra_section(&mut out)?;
    }
    if command.get_version().is_some() {
        page.render_version_section(&mut out)?;
    }
    Ok(out)
}

/// Writes the page of a command and those of its subcommands. Returns their number.
fn write_pages(dir: &Path, command: &clap::Command) -> Outcome<usize> {
    let what = |e: std::io::Error| Failure::io(format!("cannot write into {}", dir.display()), &e);
    std::fs::create_dir_all(dir).map_err(what)?;
    let name = Man::new(command.clone()).get_filename();
    std::fs::write(dir.join(name), page(command).map_err(what)?).map_err(what)?;
    let mut pages = 1;
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        pages += write_pages(dir, below)?;
    }
    Ok(pages)
}

/// Prints the version of the program and of the formats.
pub fn version(output: &mut Output) -> Outcome<Done> {
    let version = env!("CARGO_PKG_VERSION");
    if !output.json() {
        output.line(&format!("bulla {version}, format {FORMAT}"))?;
    }
    Ok(Done::ok(fields(
        json!({"version": version, "format": FORMAT}),
    )))
}

/// The number of the formats that this build writes.
const FORMAT: u32 = 0;

/// Prints a text as the whole result.
pub(super) fn document(output: &mut Output, key: &str, text: &[u8]) -> Outcome<Done> {
    if output.json() {
        let text = String::from_utf8_lossy(text).into_owned();
        return Ok(Done::ok(fields(json!({key: text}))));
    }
    output.raw(text)?;
    Ok(Done::ok(fields(json!({}))))
}
