//! Memory and the repository pass the suite for replicas, and the suite fails replicas that break a
//! rule.

use std::sync::Mutex;

use bytes::Bytes;
use store::conformance::{Content, suite};
use store::{BlockStore, BoxFuture, MemoryStore, Replica, Repository, StoreError, Writer};
use trust::{Handle, Record};

fn memory(content: Content) -> MemoryStore {
    let store = MemoryStore::new("memory");
    for record in content.records {
        store.insert(record);
    }
    if let Some(head) = content.head {
        store.set_head(head);
    }
    store
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_conforms() {
    suite(async |content| memory(content), Bytes::from_static(b"head")).await;
}

/// `commits`: over how many commits the records are spread.
async fn repository(commits: usize) {
    let dirs = Mutex::new(Vec::new());
    let make = async |content: Content| {
        let dir = tempfile::tempdir().unwrap();
        let repo = Repository::create(dir.path()).unwrap();
        dirs.lock().unwrap().push(dir);
        let mut writer = Writer::begin(&repo).unwrap();
        let size = content.records.len().div_ceil(commits).max(1);
        for part in content.records.chunks(size) {
            part.iter().for_each(|r| assert!(writer.append(r).unwrap()));
            writer.checkpoint().unwrap();
        }
        if let Some(head) = content.head {
            writer.commit(&head).unwrap();
        }
        repo
    };
    suite(make, Bytes::from_static(b"head")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repository_conforms() {
    repository(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repository_of_many_commits_conforms() {
    repository(30).await;
}

type Fault = fn(Vec<Record>, &[Handle]) -> Vec<Record>;

/// A store with one fault, to check that the suite finds it.
struct Faulty {
    inner: MemoryStore,
    fault: Fault,
}

impl BlockStore for Faulty {
    fn place(&self) -> &str {
        self.inner.place()
    }
    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move { Ok((self.fault)(self.inner.get_many(want, around).await?, want)) })
    }
}

impl Replica for Faulty {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        self.inner.head()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_notices_replicas_that_break_a_rule() {
    let faults: [Fault; 4] = [
        |mut answer, _| {
            answer.pop();
            answer
        },
        |mut answer, _| {
            answer.extend(answer.first().cloned());
            answer
        },
        |mut answer, _| {
            answer.reverse();
            answer
        },
        |mut answer, _| {
            let frames: Vec<_> = answer.iter().map(|r| r.frame.clone()).collect();
            for (r, f) in answer.iter_mut().zip(frames.into_iter().rev()) {
                r.frame = f;
            }
            answer
        },
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        let make = async move |content| Faulty {
            inner: memory(content),
            fault,
        };
        let run = tokio::spawn(async move { suite(make, Bytes::from_static(b"head")).await });
        assert!(run.await.unwrap_err().is_panic(), "fault {number} passed");
    }
}
