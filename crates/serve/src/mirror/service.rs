//! The mirror's requests over the bulla protocol (`docs/formats/protocol.md`). Requests for bytes in memory
//! are answered at once, the others when the disk has read them.

use std::sync::Arc;

use bytes::Bytes;
use store::Patience;
use tokio::task::JoinSet;
use trust::{Handle, Reject};
use wire::frame::PROTOCOL;
use wire::mirror::{self, NO_VOLUME, Request, head_name, kind};
use wire::refusal::ErrorCode;

use crate::mirror::disk_read::{self, DiskRead};
use crate::mirror::volumes::{Mirror, Volume};
use crate::net::{self, Opening, Responder, Service};

/// An answer that is longer than this is not read in one go from the page cache.
const MAX_AT_ONCE_BYTES: usize = 2 << 20;

/// A mirror as a service.
pub(crate) struct MirrorService(pub(crate) Arc<Mirror>);

/// Reads from disk for one connection; they end with it.
#[derive(Default)]
pub(crate) struct Session(JoinSet<()>);

impl Service for MirrorService {
    const PROTOCOL: u8 = PROTOCOL;
    type Session = Session;

    fn open(&self, _: Opening<'_>) -> Session {
        Session::default()
    }

    fn max_body_bytes(&self, _: &Session, kind: u8) -> Option<usize> {
        mirror::max_body_bytes(kind)
    }

    #[inline]
    fn request(
        &self,
        session: &mut Session,
        request: net::Request<'_>,
        responder: Responder<'_>,
    ) -> Result<(), Reject> {
        let request = Request::decode(request.kind, request.body)?;
        let Some(volume) = self.0.volume(request.volume()) else {
            self.no_volume(responder);
            return Ok(());
        };
        match request {
            Request::Head {
                around_bytes,
                known,
                toward,
                ..
            } => {
                self.0.counters.head_requests.add(1);
                let head = volume.reader.head();
                if head.is_empty() {
                    self.no_volume(responder);
                } else if known.is_some_and(|known| known == head_name(&head)) {
                    unchanged(responder);
                } else {
                    self.head(session, responder, volume, head, (around_bytes, toward));
                }
            }
            Request::Range {
                object,
                offset,
                len_bytes,
                ..
            } => {
                self.0.counters.range_requests.add(1);
                let read = DiskRead::Range {
                    object,
                    offset,
                    len_bytes,
                };
                self.read_disk(session, responder, volume, read);
            }
            Request::Data {
                around_bytes, want, ..
            } => self.data(session, responder, volume, around_bytes, want),
        }
        Ok(())
    }
}

impl MirrorService {
    fn head(
        &self,
        session: &mut Session,
        mut responder: Responder<'_>,
        volume: &Volume,
        head: Bytes,
        (around_bytes, toward): (usize, Vec<u8>),
    ) {
        let mirror = &self.0;
        let bundle = (around_bytes > 0).then(|| volume.bundle(&head)).flatten();
        let Some(bundle) = bundle else {
            return responder.message(kind::HEAD, head);
        };
        if toward.is_empty() {
            return send_head(&mut responder, bundle.near().within(around_bytes), head);
        }
        if let Some(path) = mirror.paths.get(bundle.number(), &toward) {
            if path.is_whole(around_bytes) {
                responder.likely_last();
            }
            return send_head(&mut responder, path.within(around_bytes), head);
        }
        mirror.counters.walks.add(1);
        responder.costly();
        match bundle.toward(&*volume.reader, &toward, Patience::Never) {
            Some(path) => {
                let path = Arc::new(path);
                mirror.paths.keep(bundle.number(), &toward, &path);
                send_head(&mut responder, path.within(around_bytes), head);
            }
            None => {
                let read = DiskRead::Path {
                    bundle,
                    toward,
                    around_bytes,
                };
                self.read_disk(session, responder, volume, read);
            }
        }
    }

    fn data(
        &self,
        session: &mut Session,
        mut responder: Responder<'_>,
        volume: &Volume,
        around_bytes: usize,
        want: Vec<Handle>,
    ) {
        let mirror = &self.0;
        mirror.counters.data_requests.add(1);
        mirror.counters.handles.add(want.len() as u64);
        let one = match want.as_slice() {
            [one] => Some(*one),
            _ => None,
        };
        if let Some(one) = one
            && let Some(regions) = mirror.responses.get(volume.number, &one, around_bytes)
        {
            return send_records(&mut responder, regions.iter().cloned());
        }
        // An answer that would exceed the client's share goes out in slices.
        let expected = disk_read::expected_bytes(want.len(), around_bytes);
        if !responder
            .account()
            .has_room_for(expected.min(MAX_AT_ONCE_BYTES))
        {
            let read = DiskRead::Data { want, around_bytes };
            return self.read_disk(session, responder, volume, read);
        }
        match volume.reader.read_if_cached(&want, around_bytes) {
            Ok(Some(regions)) => {
                if let Some(one) = one {
                    let responses = &mirror.responses;
                    responses.keep(volume.number, &one, around_bytes, &regions);
                }
                send_records(&mut responder, regions);
            }
            Ok(None) => {
                let read = DiskRead::Data { want, around_bytes };
                self.read_disk(session, responder, volume, read);
            }
            Err(error) => {
                let text = mirror.storage_error(&*volume.reader, &error);
                responder.refuse(ErrorCode::STORAGE, text);
            }
        }
    }

    fn no_volume(&self, responder: Responder<'_>) {
        self.0.counters.no_volume.add(1);
        responder.refuse(NO_VOLUME, "not served here");
    }

    /// Starts a read on the blocking threads.
    fn read_disk(
        &self,
        session: &mut Session,
        responder: Responder<'_>,
        volume: &Volume,
        read: DiskRead,
    ) {
        // Forgets reads that have ended.
        while session.0.try_join_next().is_some() {}
        self.0.counters.disk_reads.add(1);
        let reader = Arc::clone(&volume.reader);
        let account = Arc::clone(responder.account());
        let mirror = Arc::clone(&self.0);
        let answer = disk_read::answer(mirror, account, reader, read, responder.later());
        session.0.spawn(answer);
    }
}

fn unchanged(mut responder: Responder<'_>) {
    responder.message(kind::DONE, Bytes::new());
}

fn send_head(responder: &mut Responder<'_>, records: Bytes, head: Bytes) {
    if !records.is_empty() {
        responder.message(kind::RECORDS, records);
    }
    responder.message(kind::HEAD, head);
}

#[inline]
fn send_records(responder: &mut Responder<'_>, regions: impl IntoIterator<Item = Bytes>) {
    for region in regions {
        responder.message(kind::RECORDS, region);
    }
    responder.message(kind::DONE, Bytes::new());
}
