//! Parses, prints and opens SOURCE and LOCATION as users write them.
//!
//! A SOURCE is `VOLUMEID@LOCATION`. The volume id is trusted; the location is only a hint. Relies on
//! `remote`, `http` and `store` for the replicas that it opens.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use store::lazy::LazyRepository;
use store::repository::Repository;
use store::{Replica, StoreError};
use trust::statement::VolumeId;

use crate::DEFAULT_PORT;
use crate::http::{HttpAddress, HttpOptions, HttpStore, Tls};
use crate::remote::{RemoteOptions, RemoteStore};

/// A SOURCE or LOCATION that cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LocationError {
    /// It does not have the right form.
    #[error("{text}: {why}")]
    Syntax {
        /// The text that was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// This machine cannot read from the place.
    #[error("{0}")]
    Place(String),
    /// The directory does not answer: its disk failed.
    #[error("the repository is not available: {0}")]
    Unavailable(String),
}

/// A place to read blocks from. It is not trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A repository in a directory of this machine.
    Directory(PathBuf),
    /// A `bulla serve`: `bulla://host[:port]`.
    Server {
        /// Host name or address, without brackets.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// A repository behind a web server: `http(s)://host[:port]/path`.
    Web(HttpAddress),
}

/// A volume and a place to read it from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The volume: the only part that is trusted.
    pub volume: VolumeId,
    /// The place to ask first.
    pub location: Location,
}

fn bad(text: &str, why: impl Into<String>) -> LocationError {
    LocationError::Syntax {
        text: text.to_owned(),
        why: why.into(),
    }
}

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        if text.is_empty() {
            return Err(bad(text, "an empty location"));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(Location::Directory(PathBuf::from(text)));
        };
        match scheme {
            "bulla" => {
                let (host, port) = server(text, rest, DEFAULT_PORT)?;
                Ok(Location::Server { host, port })
            }
            "http" | "https" => match text.parse() {
                Ok(address) => Ok(Location::Web(address)),
                Err(why) => Err(bad(text, why)),
            },
            "file" => Ok(Location::Directory(PathBuf::from(rest))),
            other => Err(bad(
                text,
                format!("this bulla cannot read from a location `{other}://`"),
            )),
        }
    }
}

/// Host and port of `rest`, what comes after `bulla://` in `text`.
pub(crate) fn server(
    text: &str,
    rest: &str,
    default_port: u16,
) -> Result<(String, u16), LocationError> {
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = if let Some(v6) = rest.strip_prefix('[') {
        let (host, tail) = v6
            .split_once(']')
            .ok_or_else(|| bad(text, "`[` without `]`"))?;
        let port = tail.strip_prefix(':');
        if port.is_none() && !tail.is_empty() {
            return Err(bad(text, "after `]` comes `:port` or nothing"));
        }
        (host, port)
    } else {
        match rest.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        }
    };
    let port = match port {
        None => default_port,
        // `parse` would accept a sign.
        Some(port) => Some(port)
            .filter(|port| port.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|port| port.parse().ok())
            .ok_or_else(|| bad(text, "the port is not a number"))?,
    };
    let bracketed = rest.starts_with('[');
    // The host appears in messages and logs, and its colons must not be confused with that of the port.
    let possible = |b: u8| match b {
        b':' => bracketed,
        b'/' | b'@' | b'[' | b']' => false,
        _ => b.is_ascii_graphic(),
    };
    if host.is_empty() || !host.bytes().all(possible) {
        return Err(bad(text, "a server is written bulla://host[:port]"));
    }
    Ok((host.to_owned(), port))
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Location::Directory(path) => path.display().fmt(f),
            Location::Server { host, port } if host.contains(':') => {
                write!(f, "bulla://[{host}]:{port}")
            }
            Location::Server { host, port } => write!(f, "bulla://{host}:{port}"),
            Location::Web(address) => address.fmt(f),
        }
    }
}

impl FromStr for Source {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        let Some((id, location)) = text.split_once('@') else {
            return Err(bad(
                text,
                "a source is written VOLUMEID@LOCATION; the volume id is missing",
            ));
        };
        let volume = id
            .parse::<VolumeId>()
            .map_err(|e| bad(id, format!("volume id: {e}")))?;
        Ok(Source {
            volume,
            location: location.parse()?,
        })
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.volume, self.location)
    }
}

impl Location {
    /// Opens the place. Does not contact a server before the first request.
    ///
    /// # Errors
    /// [`LocationError::Place`] when a directory holds no repository.
    pub fn open(&self, volume: VolumeId) -> Result<Arc<dyn Replica>, LocationError> {
        self.open_with(volume, &Tls::System)
    }

    /// The same; `tls` says which certificates of an https server are accepted.
    ///
    /// # Errors
    /// Also [`LocationError::Place`] when the file of authorities cannot be used.
    pub fn open_with(
        &self,
        volume: VolumeId,
        tls: &Tls,
    ) -> Result<Arc<dyn Replica>, LocationError> {
        match self {
            Location::Web(address) => {
                let options = HttpOptions {
                    tls: tls.clone(),
                    ..HttpOptions::default()
                };
                match HttpStore::new(address, volume, &options) {
                    Ok(store) => Ok(Arc::new(store)),
                    Err(e) => Err(LocationError::Place(e.to_string())),
                }
            }
            Location::Directory(path) => match Repository::open(path) {
                Ok(repository) => Ok(Arc::new(repository)),
                Err(e) => Err(unusable(&e, path)),
            },
            Location::Server { host, port } => {
                let address = if host.contains(':') {
                    format!("[{host}]:{port}")
                } else {
                    format!("{host}:{port}")
                };
                let options = RemoteOptions::default();
                Ok(Arc::new(RemoteStore::new(&address, volume, options)))
            }
        }
    }
}

fn unusable(error: &StoreError, path: &Path) -> LocationError {
    let mut words = error.to_string();
    let name = path.file_name().map(|name| name.to_string_lossy());
    if let Some(host) = name.filter(|name| !path.exists() && name.contains(['.', ':'])) {
        words.push_str(&format!(" (a server is written bulla://{host})"));
    }
    match error {
        StoreError::NoVolume { .. }
        | StoreError::NoRepository { .. }
        | StoreError::Format { .. } => LocationError::Place(words),
        _ => LocationError::Unavailable(words),
    }
}

/// Opens the location of `source` and its mirrors, in this order. With several places, a directory
/// that does not exist yet counts as a place that does not answer, and is tried again later.
///
/// # Errors
/// As [`Location::open_with`].
pub fn open_all(
    source: &Source,
    mirrors: &[Location],
    tls: &Tls,
) -> Result<Vec<Arc<dyn Replica>>, LocationError> {
    let mut replicas = Vec::new();
    for location in std::iter::once(&source.location).chain(mirrors) {
        match (location, location.open_with(source.volume, tls)) {
            (_, Ok(replica)) => replicas.push(replica),
            (Location::Directory(path), Err(_)) if !mirrors.is_empty() => {
                replicas.push(Arc::new(LazyRepository::new(path)));
            }
            (_, Err(error)) => return Err(error),
        }
    }
    Ok(replicas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_web_address_is_read_back_as_it_is_shown() {
        for text in ["http://host", "https://host/a/b", "http://[::1]:8080/vol1x"] {
            let location: Location = text.parse().unwrap();
            assert!(matches!(location, Location::Web(_)));
            assert_eq!(location.to_string(), text);
        }
    }

    #[test]
    fn a_server_address_has_one_meaning_or_is_refused() {
        for (text, host, port) in [
            ("bulla://mirror.example", "mirror.example", DEFAULT_PORT),
            ("bulla://mirror.example:80/", "mirror.example", 80),
            ("bulla://[::1]", "::1", DEFAULT_PORT),
            ("bulla://[fe80::1%eth0]:9", "fe80::1%eth0", 9),
        ] {
            let server = Location::Server {
                host: host.to_owned(),
                port,
            };
            assert_eq!(text.parse::<Location>().ok().as_ref(), Some(&server));
            assert_eq!(server.to_string().parse::<Location>().ok(), Some(server));
        }
        for text in [
            "",
            "bulla://",
            "bulla://:80",
            "bulla://host:",
            "bulla://host:+80",
            "bulla://host:65536",
            "bulla://::1",
            "bulla://::1:80",
            "bulla://[::1",
            "bulla://[::1]80",
            "bulla://[::1].example:80",
            "bulla://.[::1]x:80",
            "bulla://[]:80",
            "bulla://user@host",
            "bulla://host/path",
            "bulla://host\u{1b}[2J:80",
            "bulla://host\n:80",
            "https://",
            "https://user@host",
            "ftp://host",
        ] {
            assert!(text.parse::<Location>().is_err(), "{text:?} was taken");
        }
    }
}
