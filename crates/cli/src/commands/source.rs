//! `bulla source add`, `list`, `show`, `remove`: names that stand for a SOURCE, its mirrors and its pins, and the words by
//! which people compare a volume id by voice.

use std::str::FromStr;

use ::share::home::Home;
use serde_json::{Map, Value, json};
use trust::statement::VolumeId;
use trust::words::Words;
use wire::location::{Location, Source};

use crate::args::{SourceAdd, SourceCommand, SourceRemove, SourceShow};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::session::absolute;
use crate::sources::{NamedSource, SourceDirectory};
use crate::text::printable_message;

/// Runs one of the commands.
pub fn run(command: &SourceCommand, config: &Config, output: &mut Output) -> Outcome<Done> {
    match command {
        SourceCommand::Add(args) => add(args, config, output),
        SourceCommand::List => list(config, output),
        SourceCommand::Show(args) => show(args, config, output),
        SourceCommand::Remove(args) => remove(args, config, output),
    }
}

fn add(args: &SourceAdd, config: &Config, output: &mut Output) -> Outcome<Done> {
    let place = |text: &String| absolute(Location::from_str(text)?).map(|it| it.to_string());
    let mut source = Source::from_str(&args.source)?;
    // The name must mean the same in every directory.
    source.location = absolute(source.location)?;
    let named = NamedSource {
        source: source.to_string(),
        mirrors: args.mirror.iter().map(place).collect::<Outcome<_>>()?,
        freshness: args.freshness.clone(),
        policy: args.policy.clone(),
    };
    let directory = SourceDirectory::beside(config.user_file());
    refuse_taken(&args.name, config)?;
    let words = Words::of_volume(&source.volume);
    if let Some(said) = args.words.filter(|said| *said != words) {
        let error = format!("the volume {} has other words", source.volume);
        let mut failure = Failure::new(Kind::OtherVolumeWords, error);
        failure.push_cause(format!("said: {said}; those of the volume id: {words}"));
        return Err(failure);
    }
    let file = directory.add(&args.name, &named, args.replace)?;
    let mut record = record_of(&named, Some(&words));
    record.insert("name".to_owned(), args.name.clone().into());
    record.insert("file".to_owned(), file.display().to_string().into());
    if !output.json() {
        print(Some(&args.name), &named, &words, output)?;
    }
    if args.words.is_none() {
        output.note(
            "Ask the publisher for the words, by telephone for example: with other words the id is that of another volume.",
        );
    }
    Ok(Done::ok(record))
}

/// Refuses a name that stands for something else already. A name of the system's file may get another meaning for this
/// user.
fn refuse_taken(name: &str, config: &Config) -> Outcome<()> {
    let state = config.path("state-dir").unwrap_or_default();
    if Home::find(&state, name)?.is_some() {
        let error = format!("`{name}` is a shared volume of this machine");
        let hint = "choose another name: commands that read use it for the shared volume";
        return Err(Failure::new(Kind::NameTaken, error).with_hint(hint));
    }
    if VolumeId::from_str(name).is_ok() {
        let error = format!("`{name}` is a volume id");
        return Err(Failure::new(Kind::NameTaken, error));
    }
    let user_file = config.user_file().display().to_string();
    match config.source_with_origin(name) {
        Some((_, origin)) if origin == user_file => {
            let error = format!("{origin} names `{name}` already");
            Err(Failure::new(Kind::NameTaken, error))
        }
        // A file of the name itself is replaced, or refused, when it is written.
        _ => Ok(()),
    }
}

fn list(config: &Config, output: &mut Output) -> Outcome<Done> {
    let width = config.sources().map(|(name, ..)| name.len()).max();
    let (width, mut count) = (width.unwrap_or_default(), 0u64);
    for (name, named, origin) in config.sources() {
        count += 1;
        if output.json() {
            let mut record = record_of(named, None);
            record.insert("name".to_owned(), name.into());
            record.insert("file".to_owned(), origin.into());
            output.record("source", record)?;
            continue;
        }
        let mut line = format!("{name:width$}  {}", named.source);
        for mirror in &named.mirrors {
            line.push_str(&format!("  + {mirror}"));
        }
        let pins = [("freshness", &named.freshness), ("policy", &named.policy)];
        for (pin, value) in pins {
            if let Some(value) = value {
                line.push_str(&format!("  {pin} {value}"));
            }
        }
        output.line(&printable_message(&line))?;
    }
    if count == 0 {
        output.note("no source has a name; `bulla source add NAME SOURCE` gives it one");
    }
    Ok(Done::ok(fields(json!({"sources": count}))))
}

fn show(args: &SourceShow, config: &Config, output: &mut Output) -> Outcome<Done> {
    let found = config.source_with_origin(&args.source);
    let (named, name) = match (found, VolumeId::from_str(&args.source)) {
        (Some((named, _)), _) => (named.clone(), Some(args.source.as_str())),
        (None, Ok(volume)) => (of_text(&volume.to_string()), None),
        (None, Err(_)) if args.source.contains('@') => {
            (of_text(&Source::from_str(&args.source)?.to_string()), None)
        }
        (None, Err(_)) => return Err(unknown(&args.source)),
    };
    let volume = match named.volume() {
        Some(volume) => volume,
        // A volume id alone, or a source of the configuration that is not valid.
        None => match VolumeId::from_str(&named.source) {
            Ok(volume) => volume,
            Err(_) => Source::from_str(&named.source)?.volume,
        },
    };
    let words = Words::of_volume(&volume);
    let mut record = record_of(&named, Some(&words));
    record.insert("volume".to_owned(), volume.to_string().into());
    record.insert("name".to_owned(), name.into());
    record.insert("file".to_owned(), found.map(|(_, origin)| origin).into());
    if !output.json() {
        print(name, &named, &words, output)?;
    }
    Ok(Done::ok(record))
}

fn remove(args: &SourceRemove, config: &Config, output: &mut Output) -> Outcome<Done> {
    let (_, origin) = config
        .source_with_origin(&args.name)
        .ok_or_else(|| unknown(&args.name))?;
    let directory = SourceDirectory::beside(config.user_file());
    let file = directory.file(&args.name);
    if file.display().to_string() != origin {
        let error = format!("`{}` is named in {origin}", args.name);
        let hint = "edit that file: `bulla source` does not touch what people wrote, or what belongs to the system";
        return Err(Failure::new(Kind::NameTaken, error).with_hint(hint));
    }
    directory.remove(&args.name)?;
    output.note(&format!("{} is no name any more", args.name));
    Ok(Done::ok(fields(
        json!({"name": args.name, "file": file.display().to_string()}),
    )))
}

fn of_text(source: &str) -> NamedSource {
    NamedSource {
        source: source.to_owned(),
        ..NamedSource::default()
    }
}

fn unknown(name: &str) -> Failure {
    Failure::new(Kind::NoName, format!("no source has the name `{name}`"))
}

fn record_of(named: &NamedSource, words: Option<&Words>) -> Map<String, Value> {
    let volume = named.volume().map(|volume| volume.to_string());
    let mut record = fields(json!({
        "volume": volume,
        "source": named.source,
        "mirrors": named.mirrors,
        "freshness": named.freshness,
        "policy": named.policy,
    }));
    if let Some(words) = words {
        record.insert("words".to_owned(), words.to_string().into());
    }
    record
}

fn print(
    name: Option<&str>,
    named: &NamedSource,
    words: &Words,
    output: &mut Output,
) -> Outcome<()> {
    let (volume, location) = named.source.split_once('@').unwrap_or((&named.source, ""));
    let mut rows = vec![
        ("name", name.unwrap_or_default()),
        ("volume", volume),
        ("location", location),
    ];
    rows.extend(named.mirrors.iter().map(|it| ("mirror", it.as_str())));
    let pins = [("accepts", &named.freshness), ("policy", &named.policy)];
    rows.extend(
        pins.iter()
            .filter_map(|(pin, it)| Some((*pin, it.as_deref()?))),
    );
    let words = words.to_string();
    rows.push(("words", &words));
    for (label, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        output.line(&printable_message(&format!("{label:<9}{value}")))?;
    }
    Ok(())
}
