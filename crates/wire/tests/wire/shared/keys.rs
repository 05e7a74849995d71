//! Which server a client accepts, and how a device proves itself.

use std::sync::{Arc, Mutex};

use rustls::pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use trust::device::DeviceKey;
use trust::volume_id::VolumeId;
use wire::session::Claim;
use wire::shared::ServerAddress;
use wire::shared::enter::{Enter, SIGNING_DOMAIN};
use wire::shared::link::{Link, LinkError};

use super::peer::{Peer, VOLUME, connect, device, key, orderer, patient, server};

#[tokio::test]
async fn server_with_another_key_is_refused() {
    let to = server(|mut peer: Peer| async move {
        peer.welcome().await;
        peer.drain().await;
    })
    .await;
    let other = key(9).public();
    let refused = Link::connect(&to, VOLUME, &other, None, &patient()).await;
    assert!(matches!(refused.err(), Some(LinkError::OtherServer { .. })));
    assert!(connect(&to).await.is_ok());
}

#[tokio::test]
async fn server_with_a_certificate_is_refused() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        assert!(acceptor.accept(stream).await.is_err());
    });
    let to = ServerAddress {
        host: "localhost".to_owned(),
        port,
    };
    let refused = connect(&to).await.err().unwrap();
    assert!(
        matches!(refused, LinkError::Unavailable { .. }),
        "{refused}"
    );
}

/// What each connection was entered with, and whether its claim is good there.
type Entered = Arc<Mutex<Vec<(Enter, wire::session::Exporter)>>>;

async fn recording() -> (ServerAddress, Entered) {
    let entered = Entered::default();
    let seen = Arc::clone(&entered);
    let to = server(move |mut peer: Peer| {
        let seen = Arc::clone(&seen);
        async move {
            let enter = peer.enter.clone().unwrap();
            seen.lock().unwrap().push((enter, peer.exporter));
            peer.welcome().await;
            peer.drain().await;
        }
    })
    .await;
    (to, entered)
}

#[tokio::test]
async fn claim_of_one_connection_is_bad_on_another() {
    let (to, entered) = recording().await;
    let _one = connect(&to).await.unwrap();
    let _two = connect(&to).await.unwrap();
    let entered = entered.lock().unwrap();
    let [(first, here), (second, there)] = &entered[..] else {
        panic!("{} connections", entered.len());
    };
    assert_ne!(here, there);
    let (first, second) = (first.device.unwrap(), second.device.unwrap());
    let device = DeviceKey::from(&device().public());
    assert_eq!(first.verify(SIGNING_DOMAIN, VOLUME, here), Ok(device));
    assert_eq!(second.verify(SIGNING_DOMAIN, VOLUME, there), Ok(device));
    assert!(first.verify(SIGNING_DOMAIN, VOLUME, there).is_err());
    assert!(
        first
            .verify(SIGNING_DOMAIN, VolumeId::from_bytes([8; 32]), here)
            .is_err()
    );
}

/// A server that passes a device's claim on to another server of the volume has another TLS session there.
#[tokio::test]
async fn claim_cannot_be_passed_on_by_a_server_in_between() {
    let (to, entered) = recording().await;
    let _link = connect(&to).await.unwrap();
    let (stolen, _) = entered.lock().unwrap()[0].clone();
    let stolen: Claim = stolen.device.unwrap();
    let (real, at_real) = recording().await;
    let orderer = orderer().public();
    let options = patient();
    let between = Link::connect(&real, VOLUME, &orderer, None, &options);
    let _between = between.await.unwrap();
    let (_, exporter) = at_real.lock().unwrap()[0].clone();
    assert!(stolen.verify(SIGNING_DOMAIN, VOLUME, &exporter).is_err());
}
