//! `share::admission` over real sockets: an inviter and a joiner, and servers that are not those of the invitation.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use serve::shared::{Server, limits};
use share::admission::{self, AdmissionError, Answered, Joining};
use share_server::host::Host;
use tokio::sync::Notify;
use tokio::time::Instant;
use trust::device::DeviceKey;
use trust::history::Frontier;
use trust_shared::entry::Prefix;
use trust_shared::invitation::{Invitation, Secret};
use wire::refusal::ErrorCode;
use wire::shared::{Link, LinkError, LinkOptions, ServerAddress};

use super::device::{connect, link_options};
use super::volume::{directory, founder, key, options, orderer, policy, serve};

fn invitation(server: &ServerAddress) -> Invitation {
    let (volume, genesis) = policy();
    Invitation {
        volume,
        policy: genesis.hash(),
        epoch: 0,
        prefix: Prefix {
            size: 0,
            root: Frontier::new().root(),
        },
        server: server.to_string(),
        secret: Secret::from_bytes([5; 16]),
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

async fn begin(invitation: &Invitation) -> Result<Joining, AdmissionError> {
    let device = key(9).public();
    Joining::begin(invitation.clone(), &device, [6; 32], link_options(), soon()).await
}

/// The founder's device answers.
async fn answer(
    to: &ServerAddress,
    invitation: &Invitation,
    until: Instant,
) -> Result<Answered, AdmissionError> {
    let connect = async || Ok(connect(to, Some(&founder())).await?.0);
    admission::answer(connect, invitation, [7; 32], until).await
}

#[tokio::test]
async fn server_that_takes_a_connection_and_never_answers_ends_an_admission_in_time() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to: ServerAddress = format!("bulla://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let silent = tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Ok(one) = listener.accept().await {
            taken.push(one);
        }
    });
    let options = LinkOptions {
        connect_timeout: Duration::from_secs(3600),
        ..link_options()
    };
    let invitation = invitation(&to);
    let until = || Instant::now() + Duration::from_millis(200);
    let device = key(9).public();
    let joining = Joining::begin(
        invitation.clone(),
        &device,
        [6; 32],
        options.clone(),
        until(),
    );
    let joined = super::device::soon(joining).await.err();
    let connect = async || {
        let linked = Link::connect_as_guest(&to, invitation.volume, &options);
        Ok(linked.await?.0)
    };
    let answering = admission::answer(connect, &invitation, [7; 32], until());
    let answered = super::device::soon(answering).await.err();
    for failed in [joined, answered] {
        let is_away = matches!(
            failed,
            Some(AdmissionError::Link(LinkError::Unavailable { .. }))
        );
        assert!(is_away, "{failed:?}");
    }
    silent.abort();
}

#[tokio::test]
async fn inviter_and_joiner_agree_on_a_device_by_its_words() {
    let (_dir, server) = serve();
    let invitation = invitation(&server.address);
    // The joiner comes first, and waits for the inviter.
    let joining = begin(&invitation).await.unwrap();
    assert_eq!(joining.name(), "shared");
    let asking = joining.ask(soon());
    let answering = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        answer(&server.address, &invitation, soon()).await
    };
    let (words, answered) = tokio::join!(asking, answering);
    let (words, answered) = (words.unwrap(), answered.unwrap());
    let kept = Answered::decode(&answered.encode().unwrap()).unwrap();
    let device = DeviceKey::from(&key(9).public());
    assert_eq!(kept.device(&words), Ok(Some(device)));
    let other = "zoo zoo zoo zoo zoo zoo".parse().unwrap();
    assert_eq!(kept.device(&other), Ok(None));
    let late = Instant::now() + Duration::from_millis(100);
    let refused = joining.admitted(&key(9), late).await.unwrap_err();
    assert!(matches!(refused, AdmissionError::Late(_)), "{refused}");
    server.stop().await;
}

/// Another program of the inviter's device ends its connection; the server has one for each device.
#[tokio::test]
async fn inviter_goes_on_when_another_program_of_its_device_connects() {
    let (_dir, server) = serve();
    let (to, invitation) = (&server.address, invitation(&server.address));
    let until = Instant::now() + Duration::from_secs(60);
    let (connections, connected) = (Cell::new(0), Notify::new());
    let again = async || {
        let (link, _) = connect(to, Some(&founder())).await?;
        connections.set(connections.get() + 1);
        connected.notify_one();
        Ok(link)
    };
    let answering = admission::answer(again, &invitation, [7; 32], until);
    let others = async {
        connected.notified().await;
        let (other, _pushes) = connect(to, Some(&founder())).await.unwrap();
        other.ping().await.unwrap();
        let joining = begin(&invitation).await.unwrap();
        joining.ask(until).await
    };
    let (answered, words) = tokio::join!(answering, others);
    let device = DeviceKey::from(&key(9).public());
    let answered = answered.unwrap();
    assert_eq!(answered.device(&words.unwrap()), Ok(Some(device)));
    assert!(connections.get() > 1, "the inviter kept its connection");
    server.stop().await;
}

#[tokio::test]
async fn invitation_of_another_policy_is_not_taken() {
    let (_dir, server) = serve();
    let invitation = Invitation {
        policy: [1; 32],
        ..invitation(&server.address)
    };
    let refused = begin(&invitation).await.err().unwrap();
    assert!(matches!(refused, AdmissionError::Policies(_)), "{refused}");
    server.stop().await;
}

/// It has the volume's policies and blocks, and not the orderer's key.
#[tokio::test]
async fn server_without_the_orderers_key_is_not_taken() {
    let dir = directory();
    let host = Host::open(dir.path(), orderer(), options()).unwrap();
    let mut server = Server::new([host], &key(8), limits()).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let port = server.listen(any).unwrap().port();
    let serving = tokio::spawn(server.run(std::future::pending()));
    let address = ServerAddress {
        host: "127.0.0.1".to_owned(),
        port,
    };
    let refused = begin(&invitation(&address)).await.err().unwrap();
    let is_other = matches!(refused, AdmissionError::Link(LinkError::OtherServer { .. }));
    assert!(is_other, "{refused}");
    serving.abort();
}

/// Strangers cannot take all connections: devices still enter, and a guest that goes makes room for the next one.
#[tokio::test]
async fn guests_beyond_their_bound_are_told_so() {
    let (_dir, server) = serve();
    let mut guests = Vec::new();
    let refused = loop {
        match connect(&server.address, None).await {
            Ok(guest) => guests.push(guest),
            Err(refused) => break refused,
        }
        assert!(guests.len() < 1000, "guests have no bound");
    };
    let LinkError::Refused { refusal, .. } = &refused else {
        panic!("{refused}");
    };
    assert_eq!(refusal.code, ErrorCode::BUSY);
    connect(&server.address, Some(&founder())).await.unwrap();
    guests.pop();
    let until = Instant::now() + Duration::from_secs(60);
    while connect(&server.address, None).await.is_err() {
        assert!(Instant::now() < until, "a guest that has gone still counts");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn inviter_waits_no_longer_than_said() {
    let (_dir, server) = serve();
    let invitation = invitation(&server.address);
    let until = Instant::now() + Duration::from_millis(300);
    let late = answer(&server.address, &invitation, until).await;
    assert!(matches!(late, Err(AdmissionError::Late(_))), "{late:?}");
    server.stop().await;
}
