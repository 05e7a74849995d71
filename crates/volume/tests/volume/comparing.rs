//! Two readers compare what they have seen: one log, one behind the other, and two logs with evidence for strangers.

use std::sync::Arc;

use bytes::Bytes;
use store::Replica;
use store::memory::MemoryStore;
use store::object::ObjectName;
use trust::error::Class;
use trust::sighting::Sighting;
use trust::split_view::{Split, SplitView};
use volume::compare::Compared;
use volume::{Volume, VolumeError, VolumeOptions};

use crate::past::Past;

/// A reader with a state of its own.
struct Reader {
    _state: tempfile::TempDir,
    volume: Arc<Volume>,
}

impl Reader {
    async fn of(past: &Past, replica: MemoryStore) -> Reader {
        let state = tempfile::tempdir().unwrap();
        let options = VolumeOptions {
            state_directory: state.path().to_owned(),
            ..past.world.options()
        };
        let replicas: Vec<Arc<dyn Replica>> = vec![Arc::new(replica)];
        let volume = Volume::open(past.world.model.id(), replicas, options).await;
        Reader {
            volume: volume.unwrap(),
            _state: state,
        }
    }

    /// What it says to others, through the text.
    async fn says(&self) -> Sighting {
        let text = self.volume.sighting().await.unwrap().to_text().unwrap();
        Sighting::from_text(&text).unwrap()
    }

    async fn compare(&self, other: &Sighting) -> Result<Compared, VolumeError> {
        let theirs = other.verify(self.volume.id()).unwrap();
        self.volume.compare(other, &theirs).await
    }
}

/// Two readers that were shown two logs: one of version 3, and one of version 3 + `more` with another version 3.
async fn split(more: u64) -> (Past, Reader, Reader) {
    let mut past = Past::new(3);
    let first = Reader::of(&past, past.replica()).await;
    past.contradict(33);
    for seed in 0..more {
        past.publish(40 + seed);
    }
    let second = Reader::of(&past, past.replica()).await;
    (past, first, second)
}

#[tokio::test]
async fn readers_of_one_log_agree_whoever_has_seen_more() {
    let mut past = Past::new(2);
    let first = Reader::of(&past, past.replica()).await;
    assert!(matches!(
        first.compare(&first.says().await).await.unwrap(),
        Compared::Same
    ));
    for seed in 3..=9 {
        past.publish(seed);
        let later = Reader::of(&past, past.replica()).await;
        assert!(matches!(
            later.compare(&first.says().await).await.unwrap(),
            Compared::Same
        ));
        // The first reader's replica does not have the tiles of what it has not seen.
        let compared = first.compare(&later.says().await).await.unwrap();
        assert!(
            matches!(compared, Compared::Same | Compared::Behind),
            "{compared:?}"
        );
    }
}

#[tokio::test]
async fn two_logs_are_evidence_that_a_stranger_verifies() {
    for (more, tiles) in [(0, 0), (1, 0), (5, 1)] {
        let (past, first, second) = split(more).await;
        let compared = second.compare(&first.says().await).await.unwrap();
        let Compared::Split {
            verdict,
            file,
            kept: true,
        } = compared
        else {
            panic!("{more}: {compared:?}")
        };
        assert_eq!(verdict.split, Split::Logs);
        let bytes = std::fs::read(&file).unwrap();
        let evidence = SplitView::decode(&bytes).unwrap();
        assert!(evidence.tiles.len() <= 1 && (tiles == 0 || evidence.tiles.len() == tiles));
        let judged = evidence.verify().unwrap();
        assert_eq!(judged.volume, past.world.model.id());
        let versions = [judged.first.record.version, judged.second.record.version];
        assert_eq!(versions, [3, 3 + more]);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let judged = SplitView::decode(&changed).and_then(|it| it.verify());
            assert!(judged.is_err(), "byte {at}");
        }
        assert!(SplitView::decode(&bytes[..bytes.len() - 1]).is_err());
    }
}

#[tokio::test]
async fn evidence_for_which_there_is_no_room_is_not_said_to_be_kept() {
    let (_past, first, second) = split(0).await;
    let says = first.says().await;
    let Compared::Split { file, kept, .. } = second.compare(&says).await.unwrap() else {
        panic!("no split")
    };
    assert!(kept && file.exists());
    std::fs::remove_file(&file).unwrap();
    for number in 0..64 {
        std::fs::write(file.with_file_name(format!("fork-{number}")), "").unwrap();
    }
    let Compared::Split { kept, .. } = second.compare(&says).await.unwrap() else {
        panic!("no split")
    };
    assert!(!kept && !file.exists());
}

#[tokio::test]
async fn reader_that_has_seen_less_accuses_nobody() {
    let (_, first, second) = split(5).await;
    let compared = first.compare(&second.says().await).await.unwrap();
    assert!(matches!(compared, Compared::Behind), "{compared:?}");
    // If the other one's signed frontier shows it without a tile, there are two logs for both readers.
    let (_, first, second) = split(1).await;
    let compared = first.compare(&second.says().await).await.unwrap();
    assert!(matches!(compared, Compared::Split { .. }), "{compared:?}");
}

#[tokio::test]
async fn replica_makes_no_two_logs_of_one_and_hides_none() {
    // Honest readers, and a replica with wrong tiles.
    let mut past = Past::new(3);
    let first = Reader::of(&past, past.replica()).await;
    for seed in 4..=8 {
        past.publish(seed);
    }
    let liar = past.replica();
    for (tile, mut bytes) in past.world.model.tiles().unwrap() {
        bytes[0] ^= 1;
        liar.set_object(ObjectName::Tile { epoch: 0, tile }, bytes.into());
    }
    let second = Reader::of(&past, liar).await;
    let error = second.compare(&first.says().await).await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Unavailable), "{error}");
    // Two logs, and a replica that shows the tiles of the first.
    let (past, first, _) = split(5).await;
    let liar = past.replica();
    for (tile, bytes) in Past::new(9).world.model.tiles().unwrap() {
        liar.set_object(ObjectName::Tile { epoch: 0, tile }, bytes.into());
    }
    let second = Reader::of(&past, liar).await;
    let error = second.compare(&first.says().await).await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Unavailable), "{error}");
}

#[tokio::test]
async fn evidence_that_shows_no_contradiction_is_refused() {
    let (_, first, second) = split(5).await;
    let compared = second.compare(&first.says().await).await.unwrap();
    let Compared::Split { file, .. } = compared else {
        panic!("{compared:?}")
    };
    let good = SplitView::decode(&std::fs::read(file).unwrap()).unwrap();
    let refused = |change: &dyn Fn(&mut SplitView)| {
        let mut changed = good.clone();
        change(&mut changed);
        let decoded = SplitView::decode(&changed.encode().unwrap()).unwrap();
        decoded.verify().unwrap_err().to_string()
    };
    refused(&|it| std::mem::swap(&mut it.first, &mut it.second));
    refused(&|it| it.first = it.second.clone());
    refused(&|it| it.tiles.clear());
    refused(&|it| it.tiles.push(Bytes::new()));
    refused(&|it| it.tiles[0] = Bytes::from(vec![7; 32 * 9]));
    // One log, and one that goes on after it.
    let honest = Past::new(6);
    let mut later = honest;
    let early = Reader::of(&later, later.replica()).await.says().await;
    for seed in 7..=9 {
        later.publish(seed);
    }
    let late = Reader::of(&later, later.replica()).await.says().await;
    let tiles = later.world.model.tiles().unwrap();
    for tile in [
        None,
        tiles.last().map(|(_, bytes)| Bytes::from(bytes.clone())),
    ] {
        for second in [&early, &late] {
            let honest = SplitView {
                first: early.clone(),
                second: second.clone(),
                tiles: tile.iter().cloned().collect(),
            };
            assert!(honest.verify().is_err());
        }
    }
}

#[tokio::test]
async fn changed_text_is_refused() {
    let past = Past::new(3);
    let reader = Reader::of(&past, past.replica()).await;
    let text = reader.volume.sighting().await.unwrap().to_text().unwrap();
    let id = reader.volume.id();
    let read = |text: &str| Sighting::from_text(text).and_then(|it| it.verify(id));
    assert!(read(&text).is_ok());
    // What mail programs do to it does no harm.
    assert!(read(&text.replace('\n', "  \r\n")).is_ok());
    assert!(read(&format!("\n{text}\n\n")).is_ok());
    for at in 0..text.len() {
        let mut changed = text.clone().into_bytes();
        changed[at] = if changed[at] == b'7' { b'8' } else { b'7' };
        let changed = String::from_utf8(changed).unwrap();
        assert!(read(&changed).is_err(), "byte {at}");
    }
    for lines in 0..text.lines().count() {
        let cut: String = text
            .lines()
            .take(lines)
            .map(|line| format!("{line}\n"))
            .collect();
        assert!(read(&cut).is_err(), "{lines} lines");
    }
    let other = Past::new(1);
    assert_eq!(other.world.model.id(), id, "the same genesis");
    let foreign = sim::model::Model::new(8).unwrap().id();
    assert!(Sighting::from_text(&text).unwrap().verify(foreign).is_err());
}
