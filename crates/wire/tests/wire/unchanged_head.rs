//! A server that says that the head which the client has is still the newest.

use std::future::pending;

use bytes::BytesMut;
use store::{Replica, StoreError};
use tokio::io::AsyncWriteExt;
use wire::mirror::{Request, kind};

use crate::hostile_servers::{greet, message, request, server};

#[tokio::test]
async fn unchanged_head_is_the_known_one_and_is_refused_if_none_is_known() {
    let (store, _) = server(|mut stream| async move {
        let mut buffer = BytesMut::new();
        greet(&mut stream).await;
        loop {
            let (id, asked) = request(&mut stream, &mut buffer).await;
            let answer = match asked {
                Request::Head { known: None, .. } => message(kind::HEAD, id, b"head"),
                Request::Head { known, .. } => {
                    assert_eq!(known, Some(wire::mirror::head_name(b"head")));
                    message(kind::DONE, id, &[])
                }
                _ => return,
            };
            stream.write_all(&answer).await.unwrap();
        }
    })
    .await;
    for _ in 0..3 {
        assert_eq!(&store.head().await.unwrap()[..], b"head");
    }
    for body in [&[][..], b"x"] {
        let (store, _) = server(move |mut stream| async move {
            let mut buffer = BytesMut::new();
            greet(&mut stream).await;
            let (id, _) = request(&mut stream, &mut buffer).await;
            stream
                .write_all(&message(kind::DONE, id, body))
                .await
                .unwrap();
            pending::<()>().await;
        })
        .await;
        let refused = store.head().await;
        assert!(
            matches!(refused, Err(StoreError::BadAnswer { .. })),
            "{refused:?}"
        );
    }
}
