//! The library `bulla` as programs use it, against real repositories and servers. The functions of `page` are the examples
//! of docs/library.md, word for word.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bulla::{Options, Source, Volume};
use volume::VersionRef;

use crate::shared_lab::{founded, joined};
use crate::support::{Home, noise};

mod page {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use bulla::diff::diff;
    use bulla::extract::{ExtractOptions, extract};
    use bulla::verify::verify;
    use bulla::walk::Step;
    use bulla::{Error, Options, Source, Tree, Volume};
    use reader::Reads;

    pub async fn open(source: &str, state: &Path) -> Result<Volume, Error> {
        let mut options = Options::default();
        options.volume.state_directory = state.to_owned();
        options.volume.deadline = Duration::from_secs(20);
        bulla::open(Source::parse(source, state)?, &options).await
    }

    pub async fn content(tree: &Tree<'_>, path: &str) -> Result<Option<Vec<u8>>, Error> {
        let Some(file) = tree.follow(path.as_bytes()).await? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        loop {
            let pieces = tree.read(&file, bytes.len() as u64, 1 << 20).await?;
            if pieces.is_empty() {
                return Ok(Some(bytes));
            }
            bytes.extend(pieces.iter().flatten());
        }
    }

    pub async fn names(tree: &Tree<'_>, directory: &str) -> Result<Vec<String>, Error> {
        let directory = tree.find(directory.as_bytes()).await?;
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let page = tree.list(&directory, after.as_deref()).await?;
            let of_page = page.entries.iter().map(|entry| entry.name());
            names.extend(of_page.map(|name| String::from_utf8_lossy(name).into_owned()));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(names),
            }
        }
    }

    pub async fn sum_of_sizes(tree: &Tree<'_>) -> Result<u64, Error> {
        let mut walk = tree.walk(&tree.root().await?, Reads::Names);
        let mut bytes = 0;
        while let Some(step) = walk.next().await.map_err(|unlisted| unlisted.why)? {
            if let Step::Entry(entry) = step {
                match entry.is_directory() {
                    true => walk.enter(entry),
                    false => bytes += entry.inode.content.size(),
                }
            }
        }
        Ok(bytes)
    }

    pub async fn copy(tree: &Tree<'_>, to: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let top = tree.root().await?;
        let report = verify(tree, &top, &Arc::default()).await?;
        if let Some(damage) = report.gravest() {
            return Err(damage.why.clone().into());
        }
        extract(tree, &top, to, &ExtractOptions::default(), &Arc::default()).await?;
        Ok(())
    }

    pub async fn changed(old: &Tree<'_>, new: &Tree<'_>) -> Result<Vec<String>, Error> {
        let mut changed = Vec::new();
        diff(old, new, |change| {
            changed.push(change.path.display().to_string());
            Ok::<(), Error>(())
        })
        .await?;
        Ok(changed)
    }

    pub async fn write(volume: Volume) -> Result<(), Error> {
        let Some(shared) = volume.as_shared() else {
            return Ok(());
        };
        shared.make_directory(b"reports", 0o755).await?;
        shared
            .put(b"reports/draft", &b"It works.\n"[..], 0o644)
            .await?;
        shared.rename(b"reports/draft", b"reports/final").await?;
        shared.link(b"reports/final", b"newest").await?;
        volume.close().await
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(future)
}

fn state(home: &Home) -> std::path::PathBuf {
    home.path(".local/state/bulla")
}

/// Content of the files below a directory of this machine.
fn files(below: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![below.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() && !path.is_symlink() {
                true => waiting.push(path),
                false => {
                    let name = path.strip_prefix(below).unwrap().display().to_string();
                    found.insert(name, fs::read(path).unwrap());
                }
            }
        }
    }
    found
}

#[test]
fn examples_of_the_page_are_those_that_run_here() {
    let here = include_str!("library.rs");
    let page = include_str!("../../../../docs/library.md");
    let examples: Vec<&str> = page
        .split("```rust\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(examples.len() >= 6, "{}", examples.len());
    for example in examples {
        let indented: String = example
            .lines()
            .map(|line| match line {
                "" => "\n".to_owned(),
                line => format!("    {line}\n"),
            })
            .collect();
        assert!(here.contains(&indented), "{example}");
    }
}

#[test]
fn published_volume_is_read_walked_copied_and_compared() {
    let home = Home::new();
    let id = home.published();
    fs::write(home.path("tree/a"), b"second\n").unwrap();
    home.publish().ends(0);
    block_on(async {
        let source = format!("{id}@{}", home.path("repo").display());
        let volume = page::open(&source, &home.path("reader")).await.unwrap();
        let tree = volume.tree().unwrap();
        let content = page::content(&tree, "link").await.unwrap().unwrap();
        assert!(content == noise(1, 700_000));
        assert_eq!(page::content(&tree, "no/such").await.unwrap(), None);
        assert_eq!(
            page::names(&tree, "sub").await.unwrap(),
            ["again", "deep", "empty"]
        );
        let sizes = 7 + 7 + 700_000 + "sub/deep/big".len() as u64;
        assert_eq!(page::sum_of_sizes(&tree).await.unwrap(), sizes);
        page::copy(&tree, &home.path("copy")).await.unwrap();
        assert_eq!(files(&home.path("copy")), files(&home.path("tree")));
        let old = volume.at(&VersionRef::Number(1)).await.unwrap();
        assert_eq!(page::content(&old, "a").await.unwrap().unwrap(), b"hello\n");
        let changed = page::changed(&old, &tree).await.unwrap();
        assert_eq!(changed, ["a", "sub/again"]);
        let none = volume.at(&VersionRef::Number(9)).await;
        assert!(matches!(none.err(), Some(bulla::Error::NoVersion { .. })));
        assert!(volume.as_shared().is_none() && volume.as_published().is_some());
        let other = Home::new();
        let source = format!("{}@{}", other.published(), other.path("repo").display());
        let other = page::open(&source, &home.path("reader")).await.unwrap();
        let differs = page::changed(&tree, &other.tree().unwrap()).await;
        assert!(matches!(differs, Err(bulla::Error::OtherVolume)));
    });
}

#[test]
fn shared_volume_is_written_read_walked_copied_and_compared() {
    let (_orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    block_on(async {
        let volume = page::open("notes", &state(&ada)).await.unwrap();
        page::write(volume).await.unwrap();
    });
    // Another program sees it at once.
    assert_eq!(
        laptop.run(&["cat", "notes", "newest"]).ends(0).out,
        "It works.\n"
    );
    block_on(async {
        let volume = page::open("notes", &state(&laptop)).await.unwrap();
        let tree = volume.tree().unwrap();
        assert_eq!(page::names(&tree, "").await.unwrap(), ["newest", "reports"]);
        assert_eq!(page::names(&tree, "/reports/").await.unwrap(), ["final"]);
        assert_eq!(page::sum_of_sizes(&tree).await.unwrap(), 20);
        page::copy(&tree, &laptop.path("copy")).await.unwrap();
        let found = files(&laptop.path("copy"));
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            ["newest", "reports/final"]
        );
        let last = volume.as_shared().unwrap().history(None).await.unwrap();
        let before_link = VersionRef::Number(last.entries[0].at - 1);
        let old = volume.at(&before_link).await.unwrap();
        let changed = page::changed(&old, &tree).await.unwrap();
        // It had one name less.
        assert_eq!(changed, ["newest", "reports/final"]);
        let shared = volume.as_shared().unwrap();
        shared.remove(b"newest").await.unwrap();
        shared
            .make_symlink(b"newest", b"reports/final")
            .await
            .unwrap();
        let content = page::content(&tree, "newest").await.unwrap().unwrap();
        assert_eq!(content, b"It works.\n");
        let mode = share::files::Attributes {
            mode: Some(0o600),
            ..Default::default()
        };
        shared.set_attributes(b"reports/final", mode).await.unwrap();
        let file = tree.find(b"reports/final").await.unwrap();
        assert_eq!(file.inode.mode, 0o600);
        let full = shared.remove_directory(b"reports").await.unwrap_err();
        assert!(
            full.to_string().contains("reports: it is not empty"),
            "{full}"
        );
        shared.remove(b"reports/final").await.unwrap();
        shared.remove_directory(b"reports").await.unwrap();
        let gone = tree.find(b"reports").await.unwrap_err();
        assert!(matches!(gone, bulla::Error::NotFound { .. }));
        volume.close().await.unwrap();
    });
}

#[test]
fn source_that_is_none_is_an_error_that_names_it() {
    let home = Home::new();
    let none = Source::parse("notes", &state(&home)).unwrap_err();
    assert!(none.to_string().contains("`notes`"), "{none}");
    assert!(Source::parse("vol1x@/srv", &state(&home)).is_err());
    let id = home.published();
    let nowhere = format!("{id}@{}", home.path("nowhere").display());
    let source = Source::parse(&nowhere, &state(&home)).unwrap();
    let failed: Option<Volume> = block_on(bulla::open(source, &Options::default())).ok();
    assert!(failed.is_none());
}
