//! Settings. Each source overrides those after it: flags, `BULLA_*` variables, the user's file, the system's
//! file, defaults. Unknown keys are errors. `bulla config show` prints the origin of each value.
//! Design: *Configuration*.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use trust::judge::Freshness;
use trust::statement::VolumeId;
use wire::http::Tls;

use crate::failure::{Failure, Kind, Outcome};
use crate::logging::LogFormat;
use crate::output::Color;
use crate::sources::{NamedSource, SourceDirectory};
use crate::units;

/// A setting: its key in the file, its variable, its default, and the check of its value.
struct Setting {
    key: &'static str,
    variable: &'static str,
    default: &'static str,
    check: fn(&str) -> Result<(), String>,
}

fn any(_: &str) -> Result<(), String> {
    Ok(())
}

fn duration(text: &str) -> Result<(), String> {
    units::parse_duration(text).map(drop)
}

fn size(text: &str) -> Result<(), String> {
    units::parse_size(text).map(drop)
}

/// A pin belongs to one volume, but a setting applies to all.
fn freshness(text: &str) -> Result<(), String> {
    match units::parse_freshness(text)? {
        Freshness::Pinned { .. } => {
            Err("a pin belongs to one volume: write it on the command line".to_owned())
        }
        Freshness::Strict | Freshness::Grace(_) => Ok(()),
    }
}

fn choice<T: ValueEnum>(text: &str) -> Result<(), String> {
    T::from_str(text, false).map(drop).map_err(|_| {
        let names: Vec<String> = T::value_variants()
            .iter()
            .filter_map(|v| Some(v.to_possible_value()?.get_name().to_owned()))
            .collect();
        format!("`{text}` is not one of {}", names.join(", "))
    })
}

/// All settings; docs/cli.md has the same table.
const SETTINGS: &[Setting] = &[
    Setting {
        key: "cache",
        variable: "BULLA_CACHE",
        default: "",
        check: any,
    },
    Setting {
        key: "cache-keep-free",
        variable: "BULLA_CACHE_KEEP_FREE",
        default: "1GiB",
        check: size,
    },
    Setting {
        key: "cache-size",
        variable: "BULLA_CACHE_SIZE",
        default: "10GiB",
        check: size,
    },
    Setting {
        key: "color",
        variable: "BULLA_COLOR",
        default: "auto",
        check: choice::<Color>,
    },
    Setting {
        key: "deadline",
        variable: "BULLA_DEADLINE",
        default: "30s",
        check: duration,
    },
    Setting {
        key: "freshness",
        variable: "BULLA_FRESHNESS",
        default: "strict",
        check: freshness,
    },
    Setting {
        key: "http",
        variable: "BULLA_HTTP",
        default: "",
        check: any,
    },
    Setting {
        key: "key",
        variable: "BULLA_KEY",
        default: "",
        check: any,
    },
    Setting {
        key: "key-dir",
        variable: "BULLA_KEY_DIR",
        default: "",
        check: any,
    },
    Setting {
        key: "listen",
        variable: "BULLA_LISTEN",
        default: "127.0.0.1:28552",
        check: any,
    },
    Setting {
        key: "log-format",
        variable: "BULLA_LOG_FORMAT",
        default: "text",
        check: choice::<LogFormat>,
    },
    Setting {
        key: "memory",
        variable: "BULLA_MEMORY",
        default: "256MiB",
        check: size,
    },
    Setting {
        key: "refresh",
        variable: "BULLA_REFRESH",
        default: "30s",
        check: duration,
    },
    Setting {
        key: "runtime-dir",
        variable: "BULLA_RUNTIME_DIR",
        default: "",
        check: any,
    },
    Setting {
        key: "state-dir",
        variable: "BULLA_STATE_DIR",
        default: "",
        check: any,
    },
    Setting {
        key: "cache-dir",
        variable: "BULLA_CACHE_DIR",
        default: "",
        check: any,
    },
    Setting {
        key: "tls",
        variable: "BULLA_TLS",
        default: "system",
        check: any,
    },
    Setting {
        key: "valid",
        variable: "BULLA_VALID",
        default: "7d",
        check: duration,
    },
];

/// A value and its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The text of the value.
    pub text: String,
    /// `built in`, a file's path, or a variable's name.
    pub origin: String,
}

/// The configuration of one run.
#[derive(Debug, Default)]
pub struct Config {
    values: BTreeMap<&'static str, Value>,
    sources: BTreeMap<String, (NamedSource, String)>,
    /// The user's file, which may be missing.
    user_file: PathBuf,
    fault: Option<Failure>,
}

/// The system's configuration file.
const SYSTEM_FILE: &str = "/etc/bulla/config.toml";

/// The variable that names the user's file. If it is empty, it counts as unset.
const FILE_VARIABLE: &str = "BULLA_CONFIG";

impl Config {
    /// Reads all sources. `explicit` (`--config FILE`) replaces the user's file, and must exist.
    pub fn load(explicit: Option<&Path>) -> Outcome<Config> {
        let mut config = Config::built_in();
        config.added(Path::new(SYSTEM_FILE))?;
        config.file(Path::new(SYSTEM_FILE), false)?;
        let variable = std::env::var_os(FILE_VARIABLE).filter(|value| !value.is_empty());
        let named = explicit.or(variable.as_deref().map(Path::new));
        config.user_file = match named {
            Some(path) => path.to_owned(),
            None => user_file(),
        };
        let user_file = config.user_file.clone();
        // What a person wrote into the file counts more than what `source add` wrote beside it.
        config.added(&user_file)?;
        config.file(&user_file, named.is_some())?;
        for setting in SETTINGS {
            if let Some(value) = std::env::var_os(setting.variable) {
                let value = value.into_string().map_err(|_| {
                    Failure::new(Kind::Config, format!("{} is not UTF-8", setting.variable))
                })?;
                config.set(setting, value, setting.variable)?;
            }
        }
        Ok(config)
    }

    /// The defaults only.
    pub fn built_in() -> Config {
        let mut config = Config::default();
        for setting in SETTINGS {
            let text = match setting.key {
                "state-dir" => text(directory(
                    "XDG_STATE_HOME",
                    ".local/state",
                    "/var/lib/bulla",
                )),
                "cache-dir" => text(directory("XDG_CACHE_HOME", ".cache", "/var/cache/bulla")),
                "runtime-dir" => runtime_directory().map(text).unwrap_or_default(),
                "key-dir" => text(configuration().join("keys")),
                _ => setting.default.to_owned(),
            };
            let origin = "built in".to_owned();
            config.values.insert(setting.key, Value { text, origin });
        }
        config
    }

    /// Records why the configured values are missing.
    pub fn with_fault(mut self, fault: Failure) -> Config {
        self.fault = Some(fault);
        self
    }

    /// Why the configured values are missing.
    pub fn fault(&self) -> Option<&Failure> {
        self.fault.as_ref()
    }

    /// Reads what `bulla source add` wrote beside a file.
    fn added(&mut self, file: &Path) -> Outcome<()> {
        for (name, source, origin) in SourceDirectory::beside(file).read()? {
            let origin = origin.display().to_string();
            self.sources.insert(name, (source, origin));
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, must_exist: bool) -> Outcome<()> {
        let shown = path.display().to_string();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !must_exist => return Ok(()),
            Err(e) => {
                return Err(Failure::of(
                    Kind::Config,
                    format!("cannot read the configuration file {shown}"),
                    &e,
                ));
            }
        };
        self.read(&text, &shown)
    }

    fn read(&mut self, text: &str, origin: &str) -> Outcome<()> {
        let wrong = |why: String| {
            let mut failure = Failure::new(
                Kind::Config,
                format!("cannot use the configuration file {origin}"),
            );
            failure.push_cause(why);
            failure
        };
        let table: toml::Table = text
            .parse()
            .map_err(|e: toml::de::Error| wrong(e.to_string()))?;
        for (key, value) in table {
            if key == "sources" {
                let sources: BTreeMap<String, NamedSource> = value
                    .try_into()
                    .map_err(|e| wrong(format!("[sources]: {e}")))?;
                for (name, source) in sources {
                    source.check(&name).map_err(&wrong)?;
                    self.sources.insert(name, (source, origin.to_owned()));
                }
                continue;
            }
            let setting = SETTINGS
                .iter()
                .find(|setting| setting.key == key)
                .ok_or_else(|| wrong(format!("unknown setting `{key}`")))?;
            let toml::Value::String(value) = value else {
                return Err(wrong(format!(
                    "`{key}` must be a string, for example \"{}\"",
                    setting.default
                )));
            };
            self.set(setting, value, origin)?;
        }
        Ok(())
    }

    fn set(&mut self, setting: &Setting, text: String, origin: &str) -> Outcome<()> {
        (setting.check)(&text).map_err(|why| {
            let mut failure = Failure::new(
                Kind::Config,
                format!("{origin}: invalid value of `{}`", setting.key),
            );
            failure.push_cause(why);
            failure
        })?;
        let origin = origin.to_owned();
        self.values.insert(setting.key, Value { text, origin });
        Ok(())
    }

    /// Every setting, sorted by key.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.values.iter().map(|(key, value)| (*key, value))
    }

    /// Every named source, with the file that names it.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &NamedSource, &str)> {
        self.sources
            .iter()
            .map(|(name, (source, origin))| (name.as_str(), source, origin.as_str()))
    }

    /// The SOURCE that a name stands for.
    pub fn source(&self, name: &str) -> Option<&NamedSource> {
        self.sources.get(name).map(|(source, _)| source)
    }

    /// The source that a name stands for, and the file that names it.
    pub fn source_with_origin(&self, name: &str) -> Option<(&NamedSource, &str)> {
        let (source, origin) = self.sources.get(name)?;
        Some((source, origin))
    }

    /// The names that stand for a volume, sorted.
    pub fn names_of(&self, volume: VolumeId) -> Vec<&str> {
        let all = self.sources.iter();
        all.filter(|(_, (source, _))| source.volume() == Some(volume))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// The user's configuration file, which may be missing.
    pub fn user_file(&self) -> &Path {
        &self.user_file
    }

    /// The text of a setting.
    pub fn text(&self, key: &str) -> &str {
        self.values.get(key).map_or("", |value| &value.text)
    }

    /// A setting that is a path, if it is set.
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        Some(self.text(key))
            .filter(|text| !text.is_empty())
            .map(PathBuf::from)
    }

    /// How certificates of https servers are checked.
    pub fn tls(&self) -> Tls {
        match self.text("tls") {
            "system" | "" => Tls::System,
            "unverified" => Tls::Unverified,
            file => Tls::Authority(PathBuf::from(file)),
        }
    }

    /// A setting that is a duration.
    pub fn duration(&self, key: &str) -> Outcome<Duration> {
        units::parse_duration(self.text(key)).map_err(|why| Failure::new(Kind::Config, why))
    }

    /// A setting that is a size, bytes.
    pub fn size(&self, key: &str) -> Outcome<u64> {
        units::parse_size(self.text(key)).map_err(|why| Failure::new(Kind::Config, why))
    }

    /// A setting that is one of a list of words.
    pub fn choice<T: ValueEnum + Default>(&self, key: &str) -> T {
        // The value was checked when it was set.
        T::from_str(self.text(key), false).unwrap_or_default()
    }
}

fn user_file() -> PathBuf {
    configuration().join("config.toml")
}

fn configuration() -> PathBuf {
    directory("XDG_CONFIG_HOME", ".config", "/etc/bulla")
}

/// An XDG directory of this program. Services without a home directory use `fallback`.
fn directory(variable: &str, below_home: &str, fallback: &str) -> PathBuf {
    let set = |name: &str| {
        let value = std::env::var_os(name).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    match (set(variable), set("HOME")) {
        (Some(base), _) => base.join("bulla"),
        (None, Some(home)) => home.join(below_home).join("bulla"),
        (None, None) => PathBuf::from(fallback),
    }
}

/// The directory for sockets. Root always uses the same one: `bulla status` and the mount may run in
/// different sessions, or in none.
fn runtime_directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/run/bulla"));
    }
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let session = session.filter(|path| path.is_absolute())?;
    Some(session.join("bulla"))
}

fn text(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Outcome<Config> {
        let mut config = Config::default();
        config.read(text, "test.toml")?;
        Ok(config)
    }

    #[test]
    fn values_and_names_are_read() {
        let text = "deadline = \"2s\"\n[sources.docs]\nsource = \"vol1x@bulla://h\"\n";
        let config = read(text).unwrap();
        assert_eq!(config.duration("deadline").unwrap(), Duration::from_secs(2));
        assert_eq!(config.source("docs").unwrap().source, "vol1x@bulla://h");
        assert!(config.source("other").is_none());
    }

    #[test]
    fn unknown_keys_and_wrong_values_are_errors() {
        for bad in [
            "dedline = \"2s\"",
            "deadline = \"2\"",
            "deadline = 2",
            "color = \"blue\"",
            "[sources.x]\nsource = \"a\"\nsauce = \"b\"",
            "[sources.\"a@b\"]\nsource = \"a\"",
            "[sources.x]",
            "[sources.x]\nsource = \"a\"\nmirrors = \"b\"",
            "[sources.x]\nsource = \"a\"\nfreshness = \"never\"",
            "[sources.x]\nsource = \"a\"\npolicy = \"pol\"",
            "not toml",
        ] {
            let failure = read(bad).unwrap_err();
            assert_eq!(failure.kind, Kind::Config, "{bad}");
            assert!(failure.to_string().contains("test.toml"), "{bad}");
        }
    }

    #[test]
    fn built_in_values_pass_their_own_checks_and_the_document_lists_them() {
        let document = include_str!("../../../docs/cli.md");
        for setting in SETTINGS {
            if !setting.default.is_empty() {
                (setting.check)(setting.default).unwrap();
            }
            let row = format!("| `{}` | `{}` |", setting.key, setting.variable);
            assert!(document.contains(&row), "docs/cli.md lacks {row}");
        }
    }

    /// A line such as a configuration has, or nearly.
    fn any_line() -> impl Strategy<Value = String> {
        let keys: Vec<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
        let key = prop_oneof![
            prop::sample::select(keys).prop_map(str::to_owned),
            "[a-z.-]{0,9}"
        ];
        let value = prop_oneof![
            "[0-9]{0,22}(s|ms|d|y|MiB|TiB|kB)?",
            "(auto|never|json|text)",
            ".{0,12}"
        ];
        prop_oneof![
            (key, value.clone()).prop_map(|(key, value)| format!("{key} = {value:?}")),
            value.prop_map(|value| format!("source = {value:?}")),
            "\\[sources\\.[a-z.@\"-]{0,6}\\]",
            ".{0,30}",
        ]
    }

    proptest! {
        #[test]
        fn a_file_is_wrong_or_every_value_in_it_can_be_used(
            lines in prop::collection::vec(any_line(), 0..6))
        {
            let Ok(config) = read(&lines.join("\n")) else { return Ok(()) };
            for (key, _) in config.values() {
                let setting = SETTINGS.iter().find(|setting| setting.key == key).unwrap();
                prop_assert!((setting.check)(config.text(key)).is_ok());
                if matches!(key, "deadline" | "refresh" | "valid") {
                    prop_assert!(!config.duration(key).unwrap().is_zero());
                }
                if matches!(key, "memory" | "cache-size" | "cache-keep-free") {
                    config.size(key).unwrap();
                }
            }
            for (name, _, _) in config.sources() {
                prop_assert!(!name.contains(['@', '/']) && !name.starts_with('-'), "{name}");
            }
        }
    }
}
