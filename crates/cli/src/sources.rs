//! Named sources: a name that stands for a SOURCE, its mirrors and its pins.
//!
//! People write them into `config.toml`, below `[sources.NAME]`. `bulla source add` writes a file of its own for each
//! name, `sources/NAME.toml` beside `config.toml`, and never changes a file that a person wrote. So two processes that add
//! or remove names need no lock: each name is one file, which appears and disappears at once (docs/decisions/0076).

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use trust::judge::Freshness;
use trust::statement::VolumeId;
use trust::text::{Noun, read};
use wire::location::{Location, Source};

use crate::failure::{Failure, Kind, Outcome};
use crate::units;

/// A name that stands for a whole SOURCE.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NamedSource {
    /// `VOLUMEID@LOCATION`.
    pub source: String,
    /// Further locations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// Which versions to accept, as `--freshness`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freshness: Option<String>,
    /// The hash of a policy that the volume's policies must contain (`pol1...`), as `--policy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// Numbers of the files that this process has begun.
static NUMBER: AtomicU64 = AtomicU64::new(0);
/// A longer file is not one of ours.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// Most names in a directory.
const MAX_NAMES: usize = 4096;
/// Longest name, bytes.
const MAX_NAME_BYTES: usize = 64;
/// The end of the names of the files.
const ENDING: &str = ".toml";
/// The first line of each file.
const HEADING: &str =
    "# Written by `bulla source add`; the name of this file is the name of the source.\n";

impl NamedSource {
    /// The volume, the first location and the other ones.
    ///
    /// # Errors
    /// [`Failure`] for a part that is not valid.
    pub fn parsed(&self) -> Outcome<(Source, Vec<Location>)> {
        let source = Source::from_str(&self.source)?;
        let mirrors = self.mirrors.iter().map(|text| Location::from_str(text));
        Ok((source, mirrors.collect::<Result<_, _>>()?))
    }

    /// The volume, if the source is valid.
    pub fn volume(&self) -> Option<VolumeId> {
        Source::from_str(&self.source).ok().map(|it| it.volume)
    }

    /// Which versions to accept, if that is set.
    ///
    /// # Errors
    /// What is wrong with the value.
    pub fn freshness(&self) -> Result<Option<Freshness>, String> {
        let text = self.freshness.as_deref();
        text.map(units::parse_freshness).transpose()
    }

    /// The hash of the pinned policy, if there is one.
    ///
    /// # Errors
    /// What is wrong with the value.
    pub fn policy(&self) -> Result<Option<[u8; 32]>, String> {
        self.policy.as_deref().map(parse_policy).transpose()
    }

    /// Refuses values that could never be used. The locations are checked when they are used: they may need a later
    /// bulla.
    pub fn check(&self, name: &str) -> Result<(), String> {
        check_name(name)?;
        let pins = self.freshness().and(self.policy().map(drop));
        pins.map_err(|why| format!("the source `{name}`: {why}"))
    }
}

/// Parses the hash of a policy.
pub fn parse_policy(text: &str) -> Result<[u8; 32], String> {
    read(Noun::Policy, text).map_err(|e| format!("`{text}`: {e}"))
}

/// A name must not look like a SOURCE or a path.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_plain = !name.is_empty() && name.chars().all(plain) && !name.starts_with(['.', '-']);
    if !is_plain || name.len() > MAX_NAME_BYTES {
        return Err(format!(
            "`{name}` is not a valid name of a source; use letters, digits, `-`, `_` and `.`, and at most \
             {MAX_NAME_BYTES} of them"
        ));
    }
    Ok(())
}

/// A directory of named sources, one file for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceDirectory {
    path: PathBuf,
}

impl SourceDirectory {
    /// The directory beside a configuration file. It need not exist.
    pub fn beside(configuration: &Path) -> SourceDirectory {
        SourceDirectory {
            path: configuration.with_file_name("sources"),
        }
    }

    /// The file of a name.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}{ENDING}"))
    }

    /// All names, their sources and their files, sorted. Files that a program left half written are passed over, and those
    /// that begin otherwise than what [`SourceDirectory::add`] writes: the directory may be somebody else's.
    ///
    /// # Errors
    /// [`Kind::Config`] for a file that cannot be read or used.
    pub fn read(&self) -> Outcome<Vec<(String, NamedSource, PathBuf)>> {
        let mut all = Vec::new();
        for name in self.names()? {
            let file = self.file(&name);
            // Another process may have removed it since.
            if let Some(source) = read_file(&name, &file)? {
                all.push((name, source, file));
            }
        }
        Ok(all)
    }

    /// The names of the files, sorted.
    fn names(&self) -> Outcome<Vec<String>> {
        let shown = self.path.display();
        let failed = |e: std::io::Error| {
            Failure::of(
                Kind::Config,
                format!("cannot read the directory {shown}"),
                &e,
            )
        };
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            Err(e) => return Err(failed(e)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_str().and_then(|name| name.strip_suffix(ENDING));
            names.extend(
                name.filter(|name| !name.starts_with('.'))
                    .map(str::to_owned),
            );
            if names.len() > MAX_NAMES {
                let error = format!("{shown} has more than {MAX_NAMES} named sources");
                return Err(Failure::new(Kind::Config, error));
            }
        }
        names.sort();
        Ok(names)
    }

    /// Writes the file of a name, whole or not at all.
    ///
    /// # Errors
    /// [`Kind::Exists`] if there is one and `replaces` is not set.
    pub fn add(&self, name: &str, source: &NamedSource, replaces: bool) -> Outcome<PathBuf> {
        let file = self.file(name);
        let failed = |e: &std::io::Error| {
            let what = format!("cannot write {}", file.display());
            match e.kind() {
                ErrorKind::AlreadyExists => Failure::new(
                    Kind::Exists,
                    format!("the name `{name}` is in use ({})", file.display()),
                )
                .with_hint("choose another name, or give --replace"),
                _ => Failure::io(what, e),
            }
        };
        let text = toml::to_string(source)
            .map_err(|e| Failure::of(Kind::Defect, "cannot write a source as TOML", &e))?;
        self.check_fits(name, &text)?;
        fs::create_dir_all(&self.path).map_err(|e| failed(&e))?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let new = self
            .path
            .join(format!(".{name}.{}.{number}", std::process::id()));
        // A process with this number may have been killed here.
        let _ = fs::remove_file(&new);
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&new)
            .and_then(|mut made| {
                made.write_all(HEADING.as_bytes())?;
                made.write_all(text.as_bytes())?;
                made.sync_all()
            })
            .and_then(|()| match replaces {
                true => fs::rename(&new, &file),
                // Fails if another process has added the name meanwhile.
                false => fs::hard_link(&new, &file),
            });
        let _ = fs::remove_file(&new);
        written.map_err(|e| failed(&e))?;
        self.sync().map_err(|e| failed(&e))?;
        Ok(file)
    }

    /// Refuses what [`SourceDirectory::read`] would refuse afterwards, for every command.
    fn check_fits(&self, name: &str, text: &str) -> Outcome<()> {
        if (HEADING.len() + text.len()) as u64 > MAX_FILE_BYTES {
            let error = format!("`{name}` has too many mirrors: at most 64 KiB in all");
            return Err(Failure::new(Kind::Usage, error));
        }
        let names = self.names()?;
        if names.len() >= MAX_NAMES && !names.iter().any(|known| known == name) {
            let error = format!("there are {MAX_NAMES} named sources already");
            return Err(Failure::new(Kind::Usage, error)
                .with_hint("remove some with `bulla source remove NAME`"));
        }
        Ok(())
    }

    /// Removes the file of a name.
    ///
    /// # Errors
    /// [`Kind::NoFile`] if there is none.
    pub fn remove(&self, name: &str) -> Outcome<()> {
        let file = self.file(name);
        let failed =
            |e: std::io::Error| Failure::io(format!("cannot remove {}", file.display()), &e);
        fs::remove_file(&file).map_err(failed)?;
        self.sync().map_err(failed)
    }

    fn sync(&self) -> std::io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

fn read_file(name: &str, file: &Path) -> Outcome<Option<NamedSource>> {
    let shown = file.display();
    let failed = |e: &dyn std::error::Error| {
        Failure::of(
            Kind::Config,
            format!("cannot use the named source in {shown}"),
            e,
        )
    };
    let opened = match File::open(file) {
        Ok(opened) => opened,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(&e)),
    };
    let mut text = Vec::new();
    opened
        .take(MAX_FILE_BYTES)
        .read_to_end(&mut text)
        .map_err(|e| failed(&e))?;
    if !text.starts_with(HEADING.as_bytes()) {
        return Ok(None);
    }
    let text = String::from_utf8(text).map_err(|e| failed(&e))?;
    let source: NamedSource = toml::from_str(&text).map_err(|e| failed(&e))?;
    source.check(name).map_err(|why| {
        let mut failure = Failure::new(
            Kind::Config,
            format!("cannot use the named source in {shown}"),
        );
        failure.push_cause(why);
        failure
    })?;
    Ok(Some(source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trust::text::write;

    fn source(location: &str) -> NamedSource {
        let volume = VolumeId::from_bytes([7; 32]);
        NamedSource {
            source: format!("{volume}@{location}"),
            mirrors: vec!["https://mirror.example/docs".to_owned()],
            freshness: Some("grace=2h".to_owned()),
            policy: Some(write(Noun::Policy, &[9; 32])),
        }
    }

    fn directory() -> (tempfile::TempDir, SourceDirectory) {
        let dir = tempfile::tempdir().unwrap();
        let sources = SourceDirectory::beside(&dir.path().join("config.toml"));
        (dir, sources)
    }

    #[test]
    fn what_is_added_is_read_back_until_it_is_removed() {
        let (dir, sources) = directory();
        assert!(sources.read().unwrap().is_empty());
        let added = source("bulla://docs.example.org");
        let file = sources.add("docs", &added, false).unwrap();
        sources
            .add(
                "b",
                &NamedSource {
                    mirrors: vec![],
                    ..source("/srv/b")
                },
                false,
            )
            .unwrap();
        // What a killed process leaves is no source.
        fs::write(dir.path().join("sources/.c.toml"), "sour").unwrap();
        let all = sources.read().unwrap();
        let names: Vec<&str> = all.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["b", "docs"]);
        assert_eq!(all[1], ("docs".to_owned(), added, file));
        sources.remove("docs").unwrap();
        assert_eq!(sources.read().unwrap().len(), 1);
        assert_eq!(sources.remove("docs").unwrap_err().kind, Kind::NoFile);
    }

    #[test]
    fn of_several_that_add_a_name_at_once_one_succeeds() {
        let (_dir, sources) = directory();
        let sources = &sources;
        let added = std::thread::scope(|scope| {
            let adding: Vec<_> = (0..8)
                .map(|n| {
                    let own = source(&format!("/srv/{n}"));
                    scope.spawn(move || sources.add("docs", &own, false).is_ok())
                })
                .collect();
            let ended = adding.into_iter().map(|it| it.join().unwrap());
            ended.filter(|is_added| *is_added).count()
        });
        assert_eq!(added, 1);
        let refused = sources
            .add("docs", &source("/srv/docs"), false)
            .unwrap_err();
        assert_eq!(refused.kind, Kind::Exists);
        sources.add("docs", &source("/srv/docs"), true).unwrap();
        assert_eq!(sources.read().unwrap()[0].1, source("/srv/docs"));
    }

    #[test]
    fn file_that_cannot_be_used_is_an_error_that_names_it() {
        let (dir, sources) = directory();
        fs::create_dir(dir.path().join("sources")).unwrap();
        for bad in [
            "",
            "source = 7",
            "source = \"a\"\nsauce = \"b\"",
            "source = \"a\"\nfreshness = \"sometimes\"",
            "source = \"a\"\npolicy = \"pol1x\"",
        ] {
            fs::write(sources.file("docs"), format!("{HEADING}{bad}")).unwrap();
            let failure = sources.read().unwrap_err();
            assert_eq!(failure.kind, Kind::Config, "{bad}");
            assert!(failure.error.contains("docs.toml"), "{}", failure.error);
        }
        let long = "#".repeat(1 << 20);
        fs::write(sources.file("docs"), format!("{HEADING}{long}")).unwrap();
        assert!(sources.read().is_err());
    }

    #[test]
    fn files_of_others_are_passed_over() {
        let (dir, sources) = directory();
        fs::create_dir(dir.path().join("sources")).unwrap();
        fs::write(dir.path().join("sources/my data.toml"), "x = 7\n").unwrap();
        fs::write(dir.path().join("sources/other.toml"), [0xff; 9]).unwrap();
        assert!(sources.read().unwrap().is_empty());
        sources.add("docs", &source("/srv/docs"), false).unwrap();
        assert_eq!(sources.read().unwrap().len(), 1);
    }

    #[test]
    fn what_would_stop_every_other_command_is_not_added() {
        let (_dir, sources) = directory();
        let long = NamedSource {
            mirrors: vec!["https://mirror.example/docs".to_owned(); 4000],
            ..source("/srv/docs")
        };
        let refused = sources.add("docs", &long, false).unwrap_err();
        assert_eq!(refused.kind, Kind::Usage);
        fs::create_dir_all(&sources.path).unwrap();
        for n in 0..MAX_NAMES {
            fs::write(sources.file(&format!("n{n}")), "").unwrap();
        }
        let refused = sources.add("docs", &source("/srv/docs"), false);
        assert_eq!(refused.unwrap_err().kind, Kind::Usage);
        sources.add("n7", &source("/srv/docs"), true).unwrap();
        sources.remove("n7").unwrap();
        sources.add("docs", &source("/srv/docs"), false).unwrap();
    }

    #[test]
    fn name_is_no_source_and_no_path() {
        for good in ["docs", "a.b", "A_1-2"] {
            check_name(good).unwrap();
        }
        for bad in ["", ".", "..", ".docs", "-x", "a/b", "a@b", "a b", "é"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert!(check_name(&"a".repeat(65)).is_err());
    }
}
