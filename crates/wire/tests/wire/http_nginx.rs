//! A repository behind a real nginx: over http and https it passes the conformance suite that every replica
//! passes, and the errors say what is wrong with the configuration of an nginx.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sim::nginx::{Identity, Nginx, Setup};
use store::conformance::{Content, record, suite};
use store::{BlockStore, Replica, Repository, StoreError, Writer};
use tempfile::TempDir;
use trust::{Kind, Record};
use wire::http::{HttpOptions, HttpStore, Tls};

const VOLUME: trust::statement::VolumeId = trust::statement::VolumeId::from_bytes([1; 32]);

fn fill(dir: &Path, content: &Content) {
    let repository = Repository::create(dir).unwrap();
    let mut writer = Writer::begin(&repository).unwrap();
    for record in &content.records {
        writer.append(record).unwrap();
    }
    if let Some(head) = &content.head {
        writer.commit(head).unwrap();
    }
}

fn records(count: u64) -> Vec<Record> {
    (0..count).map(|n| record(Kind::Data, n, 2000)).collect()
}

fn store(url: &str, tls: Tls) -> HttpStore {
    let options = HttpOptions {
        tls,
        // Longer than any answer takes, however busy the machine is.
        connect_timeout: Duration::from_secs(60),
        stall: Duration::from_secs(60),
        grace: Duration::from_secs(60),
        ..HttpOptions::default()
    };
    HttpStore::new(&url.parse().unwrap(), VOLUME, &options).unwrap()
}

async fn conforms(root: &TempDir, nginx: &Nginx, tls: Tls) {
    let count = AtomicU32::new(0);
    let make = async |content: Content| {
        let name = count.fetch_add(1, Ordering::Relaxed).to_string();
        fill(&root.path().join(&name), &content);
        store(&format!("{}/{name}", nginx.url()), tls.clone())
    };
    suite(make, Bytes::from_static(b"head")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repository_behind_nginx_conforms() {
    let root = TempDir::new().unwrap();
    let Some(nginx) = Nginx::start(root.path(), Setup::default()) else {
        return;
    };
    conforms(&root, &nginx, Tls::System).await;
    let log = nginx.requests(100);
    assert!(log.iter().all(|line| line.contains(" HTTP/1.1 GET /")));
    let pieces = log.iter().filter(|line| line.starts_with("206 "));
    assert!(pieces.count() > 100, "what never changes is read by ranges");
}

/// An authority and a certificate by it for `localhost`.
fn authority(dir: &Path) -> (Tls, Identity) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let file = dir.join("ca.pem");
    std::fs::write(&file, issuer.pem()).unwrap();
    let identity = Identity {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    };
    (Tls::Authority(file), identity)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_it_conforms_and_other_certificates_are_refused() {
    let (root, keys) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (tls, identity) = authority(keys.path());
    let setup = Setup {
        tls: Some(identity),
        ..Setup::default()
    };
    let Some(nginx) = Nginx::start(root.path(), setup) else {
        return;
    };
    conforms(&root, &nginx, tls.clone()).await;
    let log = nginx.requests(1);
    assert!(log.iter().all(|line| line.contains(" HTTP/2.0 GET /")));

    let other = TempDir::new().unwrap();
    let url = format!("{}/1", nginx.url());
    for stranger in [Tls::System, authority(other.path()).0] {
        match store(&url, stranger).head().await {
            Err(StoreError::Unavailable { cause, .. } | StoreError::Unusable { cause, .. }) => {
                assert!(cause.contains("vouches"), "{cause}");
            }
            other => panic!("{other:?}"),
        }
    }
    // A certificate for another name is refused as well.
    let url = url.replace("localhost", "127.0.0.1");
    assert!(store(&url, tls).head().await.is_err());
    // The volume id alone suffices.
    let unverified = store(&url, Tls::Unverified);
    assert_eq!(unverified.head().await.unwrap(), "head");
}

/// The results of reading a repository of 40 blocks of 2,000 bytes that is served like this.
async fn served(setup: Setup) -> Option<(Result<Bytes, StoreError>, Result<usize, StoreError>)> {
    let root = TempDir::new().unwrap();
    let content = Content {
        records: records(40),
        head: Some(Bytes::from_static(b"head")),
    };
    fill(root.path(), &content);
    std::fs::write(root.path().join("login.html"), "<html>Log in</html>").unwrap();
    let nginx = Nginx::start(root.path(), setup)?;
    let store = store(&nginx.url(), Tls::System);
    let head = store.head().await;
    let want = [content.records[7].handle, content.records[30].handle];
    let got = store.get_many(&want, 0).await.map(|records| records.len());
    Some((head, got))
}

fn location(lines: &str) -> Setup {
    Setup {
        location: lines.to_owned(),
        ..Setup::default()
    }
}

fn unavailable<T: std::fmt::Debug>(answer: Result<T, StoreError>, why: &str) {
    match answer {
        Err(StoreError::Unavailable { cause, .. } | StoreError::Unusable { cause, .. }) => {
            assert!(cause.contains(why), "{cause}")
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn without_ranges_a_small_repository_can_be_read() {
    let Some((head, got)) = served(location("max_ranges 0;")).await else {
        return;
    };
    assert_eq!(head.unwrap(), "head");
    assert_eq!(got.unwrap(), 2);
}

#[tokio::test]
async fn without_ranges_a_large_repository_is_refused_with_a_reason() {
    let root = TempDir::new().unwrap();
    let content = Content {
        records: records(1000),
        head: Some(Bytes::from_static(b"head")),
    };
    fill(root.path(), &content);
    let Some(nginx) = Nginx::start(root.path(), location("max_ranges 0;")) else {
        return;
    };
    let store = store(&nginx.url(), Tls::System);
    let got = store.get_many(&[content.records[900].handle], 0).await;
    unavailable(got, "ignores range requests");
    let read = store.counters().received_bytes.load(Ordering::Relaxed);
    assert!(read < 256 << 10, "{read} bytes were read");
}

#[tokio::test]
async fn wrong_configurations_are_named_in_the_error() {
    let encoded = location("add_header Content-Encoding gzip;");
    let login = location("rewrite ^ /login.html break;");
    let moved = location("rewrite ^ /login.html permanent;");
    for (setup, why) in [
        (encoded, "sends the file encoded (gzip)"),
        (login, "a web page and no repository"),
        (moved, "redirects in a circle"),
        (location("return 403;"), "does not let us in (403"),
        (location("return 418;"), "answers 418"),
        (location("return 302 file:///etc/passwd;"), ""),
        (location("return 302 http://169.254.169.254/;"), ""),
    ] {
        let Some((head, got)) = served(setup).await else {
            return;
        };
        unavailable(head, why);
        unavailable(got, why);
    }
}

#[tokio::test]
async fn a_repository_under_its_volume_id_is_found_and_a_missing_one_is_an_error() {
    let root = TempDir::new().unwrap();
    let id = VOLUME.to_string();
    let content = Content {
        records: records(3),
        head: Some(Bytes::from_static(b"head")),
    };
    fill(&root.path().join("mirror").join(&id), &content);
    let Some(nginx) = Nginx::start(root.path(), Setup::default()) else {
        return;
    };
    for path in ["mirror".to_owned(), format!("mirror/{id}")] {
        let store = store(&format!("{}/{path}", nginx.url()), Tls::System);
        assert_eq!(store.head().await.unwrap(), "head");
        let want = [content.records[0].handle];
        assert_eq!(store.get_many(&want, 0).await.unwrap().len(), 1);
    }
    let head = store(&nginx.url(), Tls::System).head().await;
    assert!(matches!(head, Err(StoreError::NoVolume { .. })), "{head:?}");
}

#[tokio::test]
async fn a_new_version_is_seen_and_an_old_head_costs_no_bytes() {
    let root = TempDir::new().unwrap();
    let first = Content {
        records: records(3),
        head: Some(Bytes::from_static(b"first")),
    };
    fill(root.path(), &first);
    // As if it had been published a minute ago, so that its time distinguishes it from any later one.
    let head = std::fs::File::open(root.path().join("head")).unwrap();
    let then = std::time::SystemTime::now() - Duration::from_secs(60);
    head.set_modified(then).unwrap();
    let Some(nginx) = Nginx::start(root.path(), Setup::default()) else {
        return;
    };
    let store = store(&nginx.url(), Tls::System);
    assert_eq!(store.head().await.unwrap(), "first");
    assert_eq!(store.head().await.unwrap(), "first");
    let log = nginx.requests(2);
    assert!(
        log[0].starts_with("200 ") && log[1].starts_with("304 "),
        "{log:?}"
    );
    let old = [first.records[1].handle];
    assert_eq!(store.get_many(&old, 0).await.unwrap().len(), 1);

    // Two versions of equal length within one second are not confused.
    for version in ["second", "third!"] {
        let repository = Repository::open(root.path()).unwrap();
        let mut writer = Writer::begin(&repository).unwrap();
        let new = record(Kind::Data, u64::from(version.as_bytes()[0]), 3000);
        writer.append(&new).unwrap();
        writer.commit(version.as_bytes()).unwrap();
        drop(writer);
        assert_eq!(store.head().await.unwrap(), version);
        let want = [new.handle, old[0]];
        assert_eq!(store.get_many(&want, 0).await.unwrap().len(), 2);
    }
}

#[tokio::test]
async fn an_old_head_is_read_again_when_its_files_are_gone() {
    let root = TempDir::new().unwrap();
    let content = Content {
        records: records(30),
        head: Some(Bytes::from_static(b"first")),
    };
    let dir = root.path().join("repository");
    fill(&dir, &content);
    let Some(nginx) = Nginx::start(root.path(), Setup::default()) else {
        return;
    };
    let store = store(&format!("{}/repository", nginx.url()), Tls::System);
    assert_eq!(store.head().await.unwrap(), "first");
    let want = [content.records[3].handle];
    assert_eq!(store.get_many(&want, 0).await.unwrap().len(), 1);
    // Another machine's copy of the volume replaces it: all file names differ.
    std::fs::remove_dir_all(&dir).unwrap();
    fill(&dir, &content);
    let want = [content.records[20].handle];
    assert_eq!(store.get_many(&want, 0).await.unwrap().len(), 1);
    // If no head helps, the error says so.
    std::fs::remove_dir_all(dir.join("segments")).unwrap();
    unavailable(store.get_many(&want, 0).await, "is not there");
}
