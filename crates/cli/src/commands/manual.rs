//! `bulla man`, `bulla completions`, `bulla version`, for packages and shells. The pages and scripts are generated
//! from the definition of the command line.

use std::path::Path;

use clap::CommandFactory;
use serde_json::json;

use crate::args::{Cli, Completions, Man};
use crate::failure::{Failure, Outcome};
use crate::output::{Done, Output, fields};

/// Prints the manual, or writes one page per command.
pub fn man(args: &Man, output: &mut Output) -> Outcome<Done> {
    let root = Cli::command();
    if let Some(dir) = &args.out {
        let pages = write_pages(dir, &root)?;
        return Ok(Done::ok(fields(json!({"pages": pages}))));
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(root)
        .render(&mut page)
        .map_err(|e| Failure::io("cannot create the manual page", &e))?;
    document(output, "man", &page)
}

fn write_pages(dir: &Path, root: &clap::Command) -> Outcome<usize> {
    let what = |e: std::io::Error| Failure::io(format!("cannot write into {}", dir.display()), &e);
    std::fs::create_dir_all(dir).map_err(what)?;
    clap_mangen::generate_to(root.clone(), dir).map_err(what)?;
    Ok(std::fs::read_dir(dir).map_err(what)?.count())
}

/// Prints completions for a shell.
pub fn completions(args: &Completions, output: &mut Output) -> Outcome<Done> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "bulla", &mut script);
    document(output, "completions", &script)
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
fn document(output: &mut Output, key: &str, text: &[u8]) -> Outcome<Done> {
    if output.json() {
        let text = String::from_utf8_lossy(text).into_owned();
        return Ok(Done::ok(fields(json!({key: text}))));
    }
    output.raw(text)?;
    Ok(Done::ok(fields(json!({}))))
}
