//! Devices with the product's client, and the calls of the figures.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use share::client::{Answered, Client, Options};
use share::files::{Answer, Call, FileRef, Place};
use share::home::Home;
use trust::tree::inode::{Content, FileContent, Inode, Time};
use trust_shared::decision::Decision;
use trust_shared::principal::{Device, Name};

use super::volume::{key, user};

/// How long a call may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// The deadline of a call that is made now.
pub fn soon() -> Instant {
    Instant::now() + DEADLINE
}

/// A runtime for many devices.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?)
}

/// Starts the client of a home.
pub async fn start(home: &Home) -> Result<Client> {
    Ok(Client::start(home, Options::default(), soon()).await?)
}

/// Calls, and fails when the call was refused.
pub async fn call(client: &Client, call: Call) -> Result<Answered> {
    let answered = client.call(call, soon()).await?;
    match &answered.answer {
        Answer::Refused(why) => bail!("a call was refused: {why}"),
        Answer::Silent { device, .. } => bail!("the device {device} is silent"),
        _ => Ok(answered),
    }
}

/// Admits the device of a number.
pub async fn admit(admin: &Client, number: u32) -> Result<()> {
    let decision = Decision::AdmitDevice {
        device: Device(number),
        key: key(number).public(),
        user: user(),
    };
    let answered = call(admin, Call::Decide(decision));
    answered
        .await
        .with_context(|| format!("admitting device {number}"))?;
    Ok(())
}

/// A place by its path from the root.
pub fn place(client: &Client, path: &str) -> Result<Place> {
    let names = path.split('/').map(|name| Name::new(name.as_bytes()));
    let path: Result<_, _> = names.collect();
    Ok(Place {
        start: client.root(),
        path: path?,
    })
}

/// The content of a small file.
pub fn content(bytes: &[u8]) -> Content {
    Content::Regular(FileContent::Inline(Bytes::copy_from_slice(bytes)))
}

/// A time of modification that says nothing.
pub const TIME: Time = Time {
    seconds: 1_700_000_000,
    nanos: 0,
};

/// Makes a file of any kind.
pub fn create(client: &Client, path: &str, mode: u16, content: Content) -> Result<Call> {
    Ok(Call::Create {
        place: place(client, path)?,
        number: client.new_number()?,
        inode: Box::new(Inode::new(mode, TIME, content)),
        owner: None,
        replace: false.into(),
    })
}

/// Makes an empty directory.
pub async fn make_dir(client: &Client, path: &str) -> Result<()> {
    let empty = Content::Directory {
        map: None,
        opaque: false,
    };
    call(client, create(client, path, 0o755, empty)?).await?;
    Ok(())
}

/// Gives a file other content.
pub fn write(client: &Client, path: &str, bytes: &[u8]) -> Result<Call> {
    Ok(Call::SetContent {
        file: FileRef::Place(place(client, path)?),
        content: content(bytes),
        mtime: TIME,
        expect: None,
    })
}

/// The inode of a file.
pub async fn look_up(client: &Client, path: &str) -> Result<Inode> {
    let place = place(client, path)?;
    let follow = true;
    match call(client, Call::Lookup { place, follow }).await?.answer {
        Answer::Found(file) => Ok(Inode::clone(&file.inode)),
        other => bail!("{path}: {other:?}"),
    }
}

/// The content of a small file.
pub async fn read(client: &Client, path: &str) -> Result<Bytes> {
    match look_up(client, path).await?.content {
        Content::Regular(FileContent::Inline(bytes)) => Ok(bytes),
        other => bail!("{path} has other content: {other:?}"),
    }
}

/// Number of names of a directory.
pub async fn names(client: &Client, path: &str) -> Result<u64> {
    count(client, &FileRef::Place(place(client, path)?)).await
}

/// Number of names of the root directory.
pub async fn names_of_root(client: &Client) -> Result<u64> {
    count(client, &FileRef::File(client.root())).await
}

async fn count(client: &Client, directory: &FileRef) -> Result<u64> {
    let (mut count, mut after) = (0, None);
    loop {
        let list = Call::List {
            directory: directory.clone(),
            after: after.take(),
            most: share::files::MAX_LISTED,
            inodes: false,
        };
        match call(client, list).await?.answer {
            Answer::Listed { names, next, .. } => {
                count += names.len() as u64;
                if next.is_none() {
                    return Ok(count);
                }
                after = next;
            }
            other => bail!("{other:?}"),
        }
    }
}
