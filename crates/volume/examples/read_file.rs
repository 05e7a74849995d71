//! Prints a file of a published volume:
//!
//! ```text
//! cargo run --example read_file -- VOLUMEID@LOCATION PATH
//! ```
//!
//! LOCATION is a directory, `bulla://host` or `https://host/path`. Nothing at the location is trusted:
//! each byte that is printed was verified under the volume id, and the version is no older than the
//! newest that this machine has seen.

use std::io::Write;

use volume::{Fetch, ReadError, Volume, VolumeOptions};
use wire::http::Tls;
use wire::location::{Source, open_all};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Bytes that are read, and then written, at a time.
const CHUNK_BYTES: usize = 1 << 20;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, path] = arguments.as_slice() else {
        return Err("usage: read_file VOLUMEID@LOCATION PATH".into());
    };
    let options = VolumeOptions::default();
    print_file(source, path, options, &mut std::io::stdout()).await
}

async fn print_file(
    source: &str,
    path: &str,
    options: VolumeOptions,
    output: &mut impl Write,
) -> Outcome<()> {
    let source: Source = source.parse()?;
    let replicas = open_all(&source, &[], &Tls::default())?;
    let volume = Volume::open(source.volume, replicas, options).await?;
    // The adopted version, if it has not expired.
    let snapshot = volume.current()?;
    let how = || Fetch::Until(volume.deadline());
    let file = snapshot.follow(path.as_bytes(), how()).await?;
    let file = file.ok_or_else(|| ReadError::NotFound {
        path: path.to_owned(),
    })?;
    let mut offset = 0;
    while offset < file.size {
        for part in snapshot.read(&file, offset, CHUNK_BYTES, how()).await? {
            output.write_all(&part)?;
            offset += part.len() as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use publish::pipeline::{PublishOptions, publish};
    use publish::progress::Silent;
    use trust::key::SecretKey;

    use super::*;

    #[tokio::test]
    async fn published_file_is_printed_and_a_missing_one_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let tree = place.path().join("tree");
        let content = "a line of the file\n".repeat(100_000);
        std::fs::create_dir_all(tree.join("docs")).unwrap();
        std::fs::write(tree.join("docs/long"), &content).unwrap();
        let options = PublishOptions {
            state_dir: Some(place.path().join("publisher")),
            cache_dir: Some(place.path().join("publisher/cache")),
            ..PublishOptions::default()
        };
        let (key, repository) = (SecretKey::from_seed(&[3; 32]), place.path().join("repo"));
        let published = publish(&tree, &repository, &key, &options, &Silent).unwrap();
        let source = format!("{}@{}", published.volume, repository.display());
        let options = VolumeOptions {
            state_directory: place.path().join("reader"),
            ..VolumeOptions::default()
        };
        let mut printed = Vec::new();
        let print = print_file(&source, "docs/long", options.clone(), &mut printed);
        print.await.unwrap();
        assert!(printed == content.as_bytes());
        let missing = print_file(&source, "docs/none", options, &mut printed).await;
        assert_eq!(
            missing.unwrap_err().to_string(),
            "docs/none: not in the volume"
        );
    }
}
