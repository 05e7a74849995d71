//! Describes the machine and the programs of a run. The description is part of each result.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Peers, and the command that prints the version of each.
const VERSIONS: &[(&str, &[&str])] = &[
    ("borg", &["--version"]),
    ("casync", &["--version"]),
    ("curl", &["--version"]),
    ("fio", &["--version"]),
    ("gcc", &["--version"]),
    ("git", &["--version"]),
    ("gocryptfs", &["--version"]),
    ("integritysetup", &["--version"]),
    ("linux.uml", &["--version"]),
    ("make", &["--version"]),
    ("mksquashfs", &["-version"]),
    ("nginx", &["-v"]),
    ("openssl", &["version"]),
    ("ostree", &["--version"]),
    ("restic", &["version"]),
    ("squashfuse", &["--help"]),
    ("sshfs", &["--version"]),
    ("syncthing", &["--version"]),
    ("tar", &["--version"]),
    ("zstd", &["--version"]),
];

/// The machine and the programs of a run.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Environment {
    /// Model of the processor.
    pub processor: String,
    /// Number of processors that this process may use.
    pub processors: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Kernel name and version.
    pub kernel: String,
    /// File system of the work directory.
    pub filesystem: String,
    /// Our binary: size and date, so that a result of another build is not taken for this one's.
    pub subject: String,
    /// The same of the older build, if one took part.
    #[serde(default)]
    pub before: Option<String>,
    /// First line of each peer's version; peers that are not installed are absent.
    pub peers: BTreeMap<String, String>,
}

impl Environment {
    /// Describes this machine, the binary at `bulla`, the older one at `before`, and the peers.
    pub fn of(bulla: &Path, before: Option<&Path>, work: &Path) -> Result<Environment> {
        Ok(Environment {
            processor: field_of("/proc/cpuinfo", "model name"),
            processors: std::thread::available_parallelism()?.get(),
            memory_bytes: field_of("/proc/meminfo", "MemTotal")
                .trim_end_matches(" kB")
                .parse::<u64>()
                .unwrap_or(0)
                .saturating_mul(1024),
            kernel: first_line("uname", &["-sr"]).unwrap_or_default(),
            filesystem: first_line("findmnt", &["-no", "FSTYPE", "-T", &work.to_string_lossy()])
                .unwrap_or_default(),
            subject: subject(bulla),
            before: before.map(subject),
            peers: VERSIONS
                .iter()
                .filter_map(|(name, ask)| Some(((*name).to_owned(), first_line(name, ask)?)))
                .collect(),
        })
    }
}

/// Size and date of our binary, or that there is none.
pub fn subject(bulla: &Path) -> String {
    let Ok(meta) = fs::metadata(bulla) else {
        return "no binary".to_owned();
    };
    let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let date = humantime::format_rfc3339_millis(modified);
    format!("{} bytes, built {date}", meta.len())
}

/// Load average of the last minute.
pub fn load() -> Result<f64> {
    let text = fs::read_to_string("/proc/loadavg")?;
    let first = text.split(' ').next().unwrap_or_default();
    first.parse().context("/proc/loadavg has an unknown format")
}

fn field_of(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
        .unwrap_or_default()
}

fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    // Some print it on standard error.
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    Some(
        text.lines()
            .find(|l| !l.trim().is_empty())?
            .trim()
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_is_described_and_missing_binary_reported() {
        let here = Environment::of(Path::new("/nonexistent"), None, Path::new("/tmp")).unwrap();
        assert!(here.processors > 0 && here.memory_bytes > 1 << 20);
        assert!(here.kernel.starts_with("Linux"), "{}", here.kernel);
        assert_eq!(here.subject, "no binary");
        assert!(load().unwrap() >= 0.0);
    }
}
