//! Guests: policies, the mailbox, and nothing else.

use std::time::Duration;

use bytes::Bytes;
use trust::volume_id::VolumeId;
use wire::shared::link::Link;
use wire::shared::request::{Slot, Step};
use wire::shared::{GUEST, NO_MAILBOX, NO_VOLUME, NOT_MEMBER, OCCUPIED};

use super::device::{Device, connect, link_options};
use super::volume::{block, founder, key, orderer, policy, serve};

fn slot(step: Step) -> Slot {
    Slot {
        invitation: [7; 16],
        step,
    }
}

#[tokio::test]
async fn guest_gets_policies_and_no_leaves_or_blocks() {
    let (_dir, server) = serve();
    let (guest, mut pushes) = connect(&server.address, None).await.unwrap();
    let policies = guest.policies(0).await.unwrap();
    assert_eq!(policies, [Bytes::from(policy().1.to_bytes().to_vec())]);
    assert_eq!(guest.policies(1).await.unwrap(), [] as [Bytes; 0]);
    assert_eq!(guest.welcome().newest_policy, 0);
    let record = block(1, 100);
    let refused = [
        guest.retrieve(&[record.handle]).await.err(),
        guest.cstore(&[record.handle]).await.err(),
        guest.decref(&[record.handle]).await.err(),
        guest.leaves(0, 1).await.err(),
        guest.bodies(&[0]).await.err(),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap().code(), Some(GUEST));
    }
    guest.ping().await.unwrap();
    guest.open(None).unwrap();
    let ended = pushes.next().await.unwrap_err();
    assert_eq!(ended.code(), Some(GUEST));
    server.stop().await;
}

#[tokio::test]
async fn guest_cannot_store() {
    let (_dir, server) = serve();
    let (guest, _pushes) = connect(&server.address, None).await.unwrap();
    let refused = guest.store(&[block(1, 100)]).await;
    let code = refused.unwrap_err().code();
    assert_eq!(code, Some(wire::refusal::ErrorCode::MALFORMED));
    server.stop().await;
}

#[tokio::test]
async fn stranger_and_other_volume_are_refused() {
    let (_dir, server) = serve();
    let refused = connect(&server.address, Some(&key(99))).await.err();
    assert_eq!(refused.unwrap().code(), Some(NOT_MEMBER));
    let other = VolumeId::from_bytes([9; 32]);
    let orderer = orderer().public();
    let options = link_options();
    let refused = Link::connect(&server.address, other, &orderer, None, &options).await;
    assert_eq!(refused.err().unwrap().code(), Some(NO_VOLUME));
    server.stop().await;
}

#[tokio::test]
async fn messages_of_an_admission_go_both_ways() {
    let (_dir, server) = serve();
    let (member, _pushes) = connect(&server.address, Some(&founder())).await.unwrap();
    let (guest, _none) = connect(&server.address, None).await.unwrap();
    let request = Bytes::from_static(b"request");
    let refused = guest.post(slot(Step::Request), request.clone()).await;
    assert_eq!(refused.unwrap_err().code(), Some(NO_MAILBOX));
    let refused = guest.take(slot(Step::Challenge), Duration::ZERO).await;
    assert_eq!(refused.unwrap_err().code(), Some(NO_MAILBOX));
    let nothing = member.take(slot(Step::Request), Duration::from_millis(50));
    assert_eq!(nothing.await.unwrap(), None);
    let waiting = member.take(slot(Step::Request), Duration::from_secs(60));
    let posting = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        guest
            .post(slot(Step::Request), request.clone())
            .await
            .unwrap();
        guest
            .post(slot(Step::Request), request.clone())
            .await
            .unwrap();
        let other = Bytes::from_static(b"other");
        let refused = guest.post(slot(Step::Request), other).await;
        assert_eq!(refused.unwrap_err().code(), Some(OCCUPIED));
    };
    let (letter, ()) = tokio::join!(waiting, posting);
    assert_eq!(letter.unwrap(), Some(request));
    let challenge = Bytes::from_static(b"challenge");
    member
        .post(slot(Step::Challenge), challenge.clone())
        .await
        .unwrap();
    let wait = Duration::from_secs(60);
    let letter = guest.take(slot(Step::Challenge), wait).await;
    assert_eq!(letter.unwrap(), Some(challenge));
    server.stop().await;
}

#[tokio::test]
async fn admitted_device_enters_and_removed_one_is_cut_off() {
    let (_dir, server) = serve();
    let mut ada = Device::start(&server.address, founder()).await;
    ada.begin().await;
    assert!(connect(&server.address, Some(&key(10))).await.is_err());
    ada.admit(&[key(10)]).await;
    let mut bob = Device::start(&server.address, key(10)).await;
    bob.until(|delivery| !delivery.more).await;
    bob.begin().await;
    let remove = trust_shared::decision::Decision::RemoveDevice {
        device: trust_shared::principal::Device(1),
    };
    ada.write(vec![trust_shared::calls::decide(remove)]).await;
    ada.write(Vec::new()).await;
    let ended = super::device::soon(async {
        loop {
            if let Err(ended) = bob.pushes.next().await {
                break ended;
            }
        }
    });
    assert_eq!(ended.await.code(), Some(NOT_MEMBER));
    server.stop().await;
}
