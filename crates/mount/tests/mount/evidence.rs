//! Log lines when a program gets EIO (docs/semantics.md, *Errors*): tampering is an error with path, block
//! and replica; an outage is a warning; and they are never confused.

use std::fs;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sim::liar::{Liar, Lie};
use store::Replica;
use store::memory::MemoryStore;

use crate::fixture::{TestMount, World, errno, noise, quick, wait_until};

/// Everything that was logged by this process since the first test here began.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The one log of the process. Tests find their own lines by names that only they use.
    fn begin() -> Log {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Log::default();
            let writer = log.clone();
            tracing_subscriber::fmt()
                .with_ansi(false)
                .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
                .with_writer(move || writer.clone())
                .init();
            log
        })
        .clone()
    }

    fn lines(&self, about: &str) -> Vec<String> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&log).into_owned();
        let about_it = text.lines().filter(|line| line.contains(about));
        about_it.map(str::to_owned).collect()
    }
}

/// Another replica with the blocks of `world`, which shows `head`.
fn far(world: &World, head: &Bytes) -> MemoryStore {
    let far = MemoryStore::new("far");
    for record in &world.model.records {
        far.insert(record.clone());
    }
    far.set_head(head.clone());
    far
}

/// A new volume (so that its log lines can be found) with two versions of the file `name`, over a liar that
/// shows the first; and the two heads.
async fn over_a_liar(
    seed: u8,
    name: &str,
) -> (World, TestMount, Arc<Liar<MemoryStore>>, [Bytes; 2]) {
    let mut world = World::new();
    world.model = sim::model::Model::new(seed).unwrap();
    let heads = [noise(u64::from(seed), 100_000), b"second".to_vec()].map(|content| {
        let file = world.file(&content);
        let root = world.directory(vec![(name, file)]);
        world.sign(&root, 3600)
    });
    let liar = Arc::new(Liar::new(far(&world, &heads[0]), Lie::None));
    let volume = world.open_over(vec![liar.clone()]).await;
    let m = TestMount::new(volume, quick()).await;
    (world, m, liar, heads)
}

#[tokio::test(flavor = "multi_thread")]
async fn tampering_is_logged_with_path_block_and_replica() {
    let log = Log::begin();
    let (_world, m, liar, _) = over_a_liar(101, "evidence-of-tampering").await;
    liar.tell(Lie::WrongPlaintext);
    let read = fs::read(m.path("evidence-of-tampering"));
    assert_eq!(errno(read), libc::EIO);
    let lines = log.lines("evidence-of-tampering");
    let refused = lines.iter().find(|line| line.contains(" ERROR "));
    let refused = refused.unwrap_or_else(|| panic!("no error in {lines:#?}"));
    assert!(refused.contains("Integrity"), "{refused}");
    assert!(refused.contains("path="), "{refused}");
    assert!(refused.contains("liar("), "the replica: {refused}");
    assert!(refused.contains("block"), "the block: {refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_logged_as_a_warning() {
    let log = Log::begin();
    let (_world, m, liar, _) = over_a_liar(102, "evidence-of-an-outage").await;
    liar.tell(Lie::Stall);
    let read = fs::read(m.path("evidence-of-an-outage"));
    assert_eq!(errno(read), libc::EIO);
    let lines = log.lines("evidence-of-an-outage");
    assert!(
        lines.iter().any(|line| line.contains(" WARN ")),
        "{lines:#?}"
    );
    assert!(
        !lines.iter().any(|line| line.contains(" ERROR ")),
        "{lines:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_and_fork_are_logged_as_errors_and_not_adopted() {
    let log = Log::begin();
    let (mut world, m, liar, [first, second]) = over_a_liar(103, "kept").await;
    let id = world.model.id().to_string();
    liar.tell(Lie::Head(second));
    m.wait_for(2);
    wait_until("the second", || m.read("kept") == b"second");
    let told = |class: &str| {
        let lines = log.lines(&id);
        let errors = lines.iter().filter(|line| line.contains(" ERROR "));
        errors.filter(|line| line.contains(class)).count() > 0
    };

    liar.tell(Lie::Head(first.clone()));
    wait_until("the rollback in the log", || told("Rollback"));
    assert_eq!(
        (m.mounted().version(), m.read("kept")),
        (2, b"second".to_vec())
    );

    world.model.fork(Some(&first)).unwrap();
    let file = world.file(b"another second");
    let root = world.directory(vec![("kept", file)]);
    let forked = world.sign(&root, 3600);
    liar.tell(Lie::Head(forked));
    wait_until("the fork in the log", || told("Fork"));
    m.wait_for_refreshes(2);
    assert_eq!(m.read("kept"), b"second");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_statement_is_logged_once() {
    let log = Log::begin();
    let mut world = World::new();
    world.model = sim::model::Model::new(104).unwrap();
    let file = world.file(b"x");
    world.publish(vec![("f", file)], 1);
    let m = world.mount().await;
    let id = world.model.id().to_string();
    world.clock.advance(Duration::from_secs(1));
    wait_until("the end", || fs::metadata(m.path("f")).is_err());
    wait_until("word of it", || !log.lines(&id).is_empty());
    m.wait_for_refreshes(5);
    let lines = log.lines(&id);
    let told: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("can no longer be looked up"))
        .collect();
    let errors = told.iter().filter(|line| line.contains(" ERROR ")).count();
    assert_eq!(errors, 1, "{lines:#?}");
}

/// A refresh every 100 ms over a replica that is always refused must not fill the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_head_is_logged_once() {
    let log = Log::begin();
    let mut world = World::new();
    world.model = sim::model::Model::new(105).unwrap();
    let file = world.file(b"x");
    let root = world.directory(vec![("f", file)]);
    let head = world.sign(&root, 3600);
    world.supply(head.clone());
    let bad = Liar::new(far(&world, &head), Lie::CutHead(105));
    let places: Vec<Arc<dyn Replica>> = vec![Arc::new(bad), world.store.clone()];
    let m = TestMount::new(world.open_over(places).await, quick()).await;
    let told = || log.lines("liar(CutHead(105))");
    wait_until("word of it", || !told().is_empty());
    m.wait_for_refreshes(8);
    assert_eq!(told().len(), 1, "{:#?}", told());
    assert!(told()[0].contains(" WARN "), "{:#?}", told());
    assert_eq!(m.read("f"), b"x");
}
