//! A remote store over a real server and a real repository passes the conformance suite that every replica
//! passes.

use bytes::Bytes;
use serve::mirror::{Options, RepositoryReader, Server};
use serve::net::Limits;
use std::sync::Arc;
use store::conformance::{Content, suite};
use store::{BlockStore, BoxFuture, Replica, Repository, StoreError, Writer};
use tokio::task::JoinHandle;
use trust::statement::VolumeId;
use trust::{Handle, Record};
use wire::RemoteStore;

use crate::support::patient;

/// A remote store and the server that it speaks to.
struct Served {
    remote: RemoteStore,
    server: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl BlockStore for Served {
    fn place(&self) -> &str {
        self.remote.place()
    }
    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        self.remote.get_many(want, around)
    }
}

impl Replica for Served {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        self.remote.head()
    }
}

async fn served(content: Content) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(dir.path()).unwrap();
    let mut writer = Writer::begin(&repository).unwrap();
    for record in &content.records {
        writer.append(record).unwrap();
    }
    if let Some(head) = content.head {
        writer.commit(&head).unwrap();
    }
    drop(writer);
    repository.refresh().unwrap();
    let shelf: Arc<dyn RepositoryReader> = Arc::new(repository);
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    let server = Server::listen(
        any,
        vec![(VolumeId::from_bytes([1; 32]), shelf)],
        Limits::default(),
        Options::default(),
    )
    .unwrap();
    let address = server.local_addr().to_string();
    Served {
        remote: RemoteStore::new(&address, VolumeId::from_bytes([1; 32]), patient()),
        server: tokio::spawn(server.run(std::future::pending())),
        _dir: dir,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_served_repository_conforms() {
    suite(served, Bytes::from_static(b"head")).await;
}
