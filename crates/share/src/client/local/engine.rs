//! Errors of a client, and the state of its engine.

use std::time::Duration;

use state::StateError;
use store::StoreError;
use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust_shared::entry::Prefix;
use trust_shared::note::SignedNote;

use super::WHAT;
use super::field::{
    Read, device, flag, list, option, path, read_device, read_flag, read_list, read_option,
    read_path, read_text, text,
};
use crate::client::disk::DiskError;
use crate::client::{
    BeaconStatus, ClientError, Compared, Connection, DeviceStatus, Differing, Lost, Phase, Status,
    Stopped, Trouble, View,
};

/// Most devices of a volume, removed ones included.
const MAX_DEVICES: u64 = 1 << 16;

/// Troubles by their number.
pub(super) const TROUBLES: [Trouble; 11] = [
    Trouble::Unreachable,
    Trouble::OtherServer,
    Trouble::NoVolume,
    Trouble::NotMember,
    Trouble::Restored,
    Trouble::OtherLog,
    Trouble::Unfit,
    Trouble::Refused,
    Trouble::Successor,
    Trouble::OtherEpoch,
    Trouble::NotAccepted,
];

/// The number of a trouble. None is forgotten here: the compiler wants all of them.
fn number(trouble: &Trouble) -> u8 {
    match trouble {
        Trouble::Unreachable => 0,
        Trouble::OtherServer => 1,
        Trouble::NoVolume => 2,
        Trouble::NotMember => 3,
        Trouble::Restored => 4,
        Trouble::OtherLog => 5,
        Trouble::Unfit => 6,
        Trouble::Refused => 7,
        Trouble::Successor => 8,
        Trouble::OtherEpoch => 9,
        Trouble::NotAccepted => 10,
    }
}

fn connection(e: &mut Encoder, connection: &Connection) {
    match connection {
        Connection::Connecting => {
            e.u8(0);
        }
        Connection::Online => {
            e.u8(1);
        }
        Connection::Offline(lost) => {
            e.u8(2).u8(number(&lost.trouble));
            text(e, &lost.text);
        }
    }
}

fn read_connection(d: &mut Decoder<'_>) -> Read<Connection> {
    Ok(match d.u8()? {
        0 => Connection::Connecting,
        1 => Connection::Online,
        2 => {
            let trouble = TROUBLES.get(usize::from(d.u8()?)).cloned();
            let trouble = trouble.ok_or_else(|| d.bad("an unknown trouble"))?;
            let text = read_text(d)?;
            Connection::Offline(Lost { trouble, text })
        }
        _ => return Err(d.bad("an unknown connection")),
    })
}

fn disk(e: &mut Encoder, error: &DiskError) {
    match error {
        DiskError::State(StateError::Failed { path, cause }) => {
            e.u8(0);
            text(e, path);
            text(e, cause);
        }
        DiskError::State(StateError::Locked {
            path,
            holder,
            waited_ms,
        }) => {
            e.u8(1);
            text(e, path);
            text(e, holder);
            e.varint(*waited_ms);
        }
        DiskError::State(StateError::Stalled { path, begun }) => {
            e.u8(2);
            text(e, path);
            flag(e, *begun);
        }
        DiskError::Damaged { path: file, why } => {
            e.u8(3);
            path(e, file);
            text(e, why);
        }
    }
}

fn read_disk(d: &mut Decoder<'_>) -> Read<DiskError> {
    Ok(match d.u8()? {
        0 => DiskError::State(StateError::Failed {
            path: read_text(d)?,
            cause: read_text(d)?,
        }),
        1 => DiskError::State(StateError::Locked {
            path: read_text(d)?,
            holder: read_text(d)?,
            waited_ms: d.varint()?,
        }),
        2 => DiskError::State(StateError::Stalled {
            path: read_text(d)?,
            begun: read_flag(d)?,
        }),
        3 => DiskError::Damaged {
            path: read_path(d)?,
            why: read_text(d)?,
        },
        _ => return Err(d.bad("an unknown error of a disk")),
    })
}

fn stopped(e: &mut Encoder, why: &Stopped) {
    match why {
        Stopped::Elsewhere => {
            e.u8(0);
        }
        Stopped::Unsigned => {
            e.u8(1);
        }
        Stopped::Convicted { what, evidence } => {
            e.u8(2);
            text(e, what);
            option(e, evidence.as_deref(), path);
        }
        Stopped::OtherBeginning => {
            e.u8(3);
        }
        Stopped::Disk(error) => {
            e.u8(4);
            disk(e, error);
        }
    }
}

fn read_stopped(d: &mut Decoder<'_>) -> Read<Stopped> {
    Ok(match d.u8()? {
        0 => Stopped::Elsewhere,
        1 => Stopped::Unsigned,
        2 => Stopped::Convicted {
            what: read_text(d)?,
            evidence: read_option(d, read_path)?,
        },
        3 => Stopped::OtherBeginning,
        4 => Stopped::Disk(read_disk(d)?),
        _ => return Err(d.bad("an unknown reason to stop")),
    })
}

fn phase(e: &mut Encoder, phase: &Phase) {
    e.u8(phase.kind());
    if let Phase::Stopped(why) = phase {
        stopped(e, why);
    }
}

fn read_phase(d: &mut Decoder<'_>) -> Read<Phase> {
    Ok(match d.u8()? {
        0 => Phase::Outside,
        1 => Phase::Resuming,
        2 => Phase::Running,
        3 => Phase::Stopped(read_stopped(d)?),
        _ => return Err(d.bad("an unknown phase")),
    })
}

/// The process that runs the engine is not in the bytes: the socket names it.
pub(super) fn view(e: &mut Encoder, view: &View) {
    connection(e, &view.connection);
    phase(e, &view.phase);
    e.varint(view.size);
}

pub(super) fn read_view(d: &mut Decoder<'_>) -> Read<View> {
    Ok(View {
        connection: read_connection(d)?,
        phase: read_phase(d)?,
        size: d.varint()?,
        process: None,
    })
}

pub(super) fn error(e: &mut Encoder, error: &ClientError) {
    match error {
        ClientError::Home(why) => {
            e.u8(0);
            text(e, why);
        }
        ClientError::Disk(error) => {
            e.u8(1);
            disk(e, error);
        }
        ClientError::Deadline { connection: at } => {
            e.u8(2);
            connection(e, at);
        }
        // Another program's call travels without its blocks.
        ClientError::Busy | ClientError::Unstored { .. } => {
            e.u8(3);
        }
        ClientError::Stopped(why) => {
            e.u8(4);
            stopped(e, why);
        }
        // The process that runs the engine goes away.
        ClientError::Closed | ClientError::Interrupted | ClientError::GoneOver => {
            e.u8(5);
        }
        ClientError::Unsupported(why) => {
            e.u8(6);
            text(e, why);
        }
        ClientError::Overdue {
            device: beacon,
            within,
            age,
        } => {
            e.u8(7);
            device(e, beacon);
            duration(e, *within);
            duration(e, *age);
        }
        ClientError::OtherBuild { build, process } => {
            e.u8(8);
            text(e, build);
            e.varint(u64::from(*process));
        }
        ClientError::EngineElsewhere { process } => {
            e.u8(9).varint(u64::from(*process));
        }
    }
}

pub(super) fn read_error(d: &mut Decoder<'_>) -> Read<ClientError> {
    Ok(match d.u8()? {
        0 => ClientError::Home(read_text(d)?),
        1 => ClientError::Disk(read_disk(d)?),
        2 => ClientError::Deadline {
            connection: read_connection(d)?,
        },
        3 => ClientError::Busy,
        4 => ClientError::Stopped(read_stopped(d)?),
        5 => ClientError::Interrupted,
        6 => ClientError::Unsupported(read_text(d)?),
        7 => ClientError::Overdue {
            device: read_device(d)?,
            within: read_duration(d)?,
            age: read_duration(d)?,
        },
        8 => ClientError::OtherBuild {
            build: read_text(d)?,
            process: read_process(d)?,
        },
        9 => ClientError::EngineElsewhere {
            process: read_process(d)?,
        },
        _ => return Err(d.bad("an unknown error")),
    })
}

fn read_process(d: &mut Decoder<'_>) -> Read<u32> {
    Ok(d.bounded(u32::MAX.into(), "a process over 32 bits")? as u32)
}

fn duration(e: &mut Encoder, duration: Duration) {
    e.varint(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
}

fn read_duration(d: &mut Decoder<'_>) -> Read<Duration> {
    Ok(Duration::from_millis(d.varint()?))
}

pub(super) fn status(e: &mut Encoder, status: &Status) {
    connection(e, &status.connection);
    phase(e, &status.phase);
    status.log.encode(e);
    option(e, status.note.as_ref(), |e, note| note.encode(e));
    e.varint(status.kept).varint(status.outlines);
    list(e, &status.devices, |e, row| {
        device(e, &row.device);
        e.varint(row.last_at).varint(row.attested);
        flag(e, row.active);
    });
    list(e, &status.awaited, device);
    list(e, &status.differing, |e, row| {
        device(e, &row.device);
        e.varint(row.size);
    });
    list(e, &status.beacons, |e, beacon| {
        device(e, &beacon.device);
        duration(e, beacon.within);
        duration(e, beacon.age);
    });
    e.varint(status.supported);
    list(e, &status.unsupported, |e, (author, at)| {
        device(e, author);
        e.varint(*at);
    });
    flag(e, status.own_attested);
    e.varint(status.begins);
}

pub(super) fn read_status(d: &mut Decoder<'_>) -> Read<Status> {
    Ok(Status {
        connection: read_connection(d)?,
        phase: read_phase(d)?,
        log: Prefix::decode(d)?,
        note: read_option(d, SignedNote::decode)?,
        kept: d.varint()?,
        outlines: d.varint()?,
        devices: read_list(d, MAX_DEVICES, |d| {
            Ok(DeviceStatus {
                device: read_device(d)?,
                last_at: d.varint()?,
                attested: d.varint()?,
                active: read_flag(d)?,
            })
        })?,
        awaited: read_list(d, MAX_DEVICES, read_device)?,
        differing: read_list(d, MAX_DEVICES, |d| {
            Ok(Differing {
                device: read_device(d)?,
                size: d.varint()?,
            })
        })?,
        beacons: read_list(d, MAX_DEVICES, |d| {
            Ok(BeaconStatus {
                device: read_device(d)?,
                within: read_duration(d)?,
                age: read_duration(d)?,
            })
        })?,
        supported: d.varint()?,
        unsupported: read_list(d, MAX_DEVICES, |d| Ok((read_device(d)?, d.varint()?)))?,
        own_attested: read_flag(d)?,
        begins: d.varint()?,
    })
}

pub(super) fn compared(e: &mut Encoder, compared: &Compared) {
    match compared {
        Compared::Same { size } => {
            e.u8(0).varint(*size);
        }
        Compared::Behind { size } => {
            e.u8(1).varint(*size);
        }
        Compared::Fork { evidence: Ok(file) } => {
            e.u8(2);
            path(e, file);
        }
        Compared::Fork { evidence: Err(why) } => {
            e.u8(3);
            text(e, why);
        }
        Compared::NotSigned => {
            e.u8(4);
        }
        Compared::Unreadable(why) => {
            e.u8(5);
            text(e, why);
        }
        Compared::Early { first } => {
            e.u8(6).varint(*first);
        }
    }
}

pub(super) fn read_compared(d: &mut Decoder<'_>) -> Read<Compared> {
    Ok(match d.u8()? {
        0 => Compared::Same { size: d.varint()? },
        1 => Compared::Behind { size: d.varint()? },
        2 => Compared::Fork {
            evidence: Ok(read_path(d)?),
        },
        3 => Compared::Fork {
            evidence: Err(read_text(d)?),
        },
        4 => Compared::NotSigned,
        5 => Compared::Unreadable(read_text(d)?),
        6 => Compared::Early { first: d.varint()? },
        _ => return Err(d.bad("an unknown comparison")),
    })
}

/// An error of the server's blocks. The place's name is that of the reader.
pub(super) fn store_error(e: &mut Encoder, error: &StoreError) {
    match error {
        StoreError::Full { cause, .. } => {
            e.u8(1);
            text(e, cause);
        }
        StoreError::Unsupported { why, .. } => {
            e.u8(2);
            text(e, why);
        }
        StoreError::BadAnswer { .. } => {
            e.u8(3);
        }
        StoreError::Unavailable { cause, .. } => {
            e.u8(0);
            text(e, cause);
        }
        error => {
            e.u8(0);
            text(e, &error.to_string());
        }
    }
}

pub(super) fn read_store_error(d: &mut Decoder<'_>) -> Read<StoreError> {
    let place = String::new();
    Ok(match d.u8()? {
        0 => StoreError::Unavailable {
            place,
            cause: read_text(d)?,
        },
        1 => StoreError::Full {
            place,
            cause: read_text(d)?,
        },
        2 => StoreError::Unsupported {
            place,
            why: read_text(d)?,
        },
        3 => StoreError::BadAnswer {
            place,
            why: Reject::Malformed {
                what: WHAT,
                why: "the process that runs the engine has the reason",
            },
        },
        _ => return Err(d.bad("an unknown error of a store")),
    })
}
