//! Socket files: made, replaced, left alone, removed.

use std::os::unix::net::UnixListener as Foreign;

use super::*;

fn at(path: &Path) -> Address {
    Address::Unix(path.to_owned())
}

#[test]
fn addresses_are_paths_or_numbers() {
    let parsed = |text: &str| text.parse::<Address>();
    assert_eq!(parsed("./disk.sock"), Ok(at(Path::new("./disk.sock"))));
    let tcp = SocketAddr::from(([127, 0, 0, 1], 10809));
    assert_eq!(parsed("127.0.0.1:10809"), Ok(Address::Tcp(tcp)));
    assert!(parsed("[::1]:0").is_ok());
    for wrong in ["disk.sock", "10809", "localhost:10809", ""] {
        assert!(parsed(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn socket_is_for_its_owner_only_and_goes_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = Listener::bind(&at(&path)).unwrap();
    let mode = path.symlink_metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    listener.stop();
    assert!(!path.exists());
    assert!(listener.accept().is_err());
}

#[test]
fn socket_that_nobody_serves_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    // Its file stays when it is closed.
    drop(Foreign::bind(&path).unwrap());
    assert!(path.exists());
    let _listener = Listener::bind(&at(&path)).unwrap();
    UnixStream::connect(&path).unwrap();
}

#[test]
fn socket_that_somebody_serves_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let other = Foreign::bind(&path).unwrap();
    let error = Listener::bind(&at(&path)).unwrap_err();
    assert!(matches!(error, ListenError::InUse(_)), "{error}");
    UnixStream::connect(&path).unwrap();
    drop(other);
    let tcp = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = Address::Tcp(tcp.local_addr().unwrap());
    let error = Listener::bind(&address).unwrap_err();
    assert!(matches!(error, ListenError::InUse(_)), "{error}");
}

#[test]
fn file_of_another_kind_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    std::fs::write(&path, b"precious").unwrap();
    let error = Listener::bind(&at(&path)).unwrap_err();
    assert!(matches!(error, ListenError::NotASocket(_)), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let link = dir.path().join("l");
    drop(Foreign::bind(dir.path().join("stale")).unwrap());
    std::os::unix::fs::symlink(dir.path().join("stale"), &link).unwrap();
    let error = Listener::bind(&at(&link)).unwrap_err();
    assert!(matches!(error, ListenError::NotASocket(_)), "{error}");
}

#[test]
fn socket_of_a_later_server_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let first = Listener::bind(&at(&path)).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _second = Listener::bind(&at(&path)).unwrap();
    drop(first);
    UnixStream::connect(&path).unwrap();
}

#[test]
fn path_too_long_for_a_socket_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x".repeat(120));
    let error = Listener::bind(&at(&path)).unwrap_err();
    assert!(error.to_string().contains("xxx"), "{error}");
}
