//! Whole clients ([`share::client`]) against the server on real sockets: two devices, connections that are cut after any
//! number of bytes, a server that stops and starts again.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use reader::{Expect, Fetch};
use serve::shared::limits;
use share::client::{Client, Connection, Options};
use share::files::{Answer, Call, Place};
use share::home::{Home, NewHome};
use sim::time::eventually;
use store::BlockSink;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use trust::Data;
use trust::tree::inode::{Content, FileContent, Inode, Time};
use trust_shared::decision::Decision;
use trust_shared::principal::{Device, Name, Principal};

use super::volume::{Running, USER, block, directory, founder, key, options, policy};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A way to the server that can be cut. The server may be somewhere else after a restart.
struct Way {
    at: SocketAddr,
    to: Arc<Mutex<SocketAddr>>,
    /// Bytes of the server that pass until a connection is cut, if not negative.
    left: Arc<AtomicI64>,
    cuts: Arc<AtomicU64>,
}

impl Way {
    async fn new(to: SocketAddr) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let way = Way {
            at: listener.local_addr().unwrap(),
            to: Arc::new(Mutex::new(to)),
            left: Arc::new(AtomicI64::new(-1)),
            cuts: Arc::default(),
        };
        let (to, left, cuts) = (way.to.clone(), way.left.clone(), way.cuts.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let to = *to.lock().unwrap();
                let (left, cuts) = (left.clone(), cuts.clone());
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(to).await {
                        pass(client, server, &left, &cuts).await;
                    }
                });
            }
        });
        way
    }

    fn server(&self) -> String {
        format!("bulla://{}", self.at)
    }
}

async fn pass(client: TcpStream, server: TcpStream, left: &AtomicI64, cuts: &AtomicU64) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let up = tokio::io::copy(&mut from_client, &mut to_server);
    let down = async {
        let mut bytes = [0; 1024];
        while let Ok(n @ 1..) = from_server.read(&mut bytes).await {
            let before = left.load(Ordering::SeqCst);
            if before >= 0 && left.fetch_sub(n as i64, Ordering::SeqCst) <= n as i64 {
                left.store(-1, Ordering::SeqCst);
                cuts.fetch_add(1, Ordering::SeqCst);
                let _ = to_client.write_all(&bytes[..before as usize]).await;
                return;
            }
            if to_client.write_all(&bytes[..n]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = up => {}
        () = down => {}
    }
}

fn home(at: &Path, machine: u8, server: &str) -> Home {
    let (volume, policy) = policy();
    let new = NewHome {
        volume,
        name: "v",
        server,
        key: &key(machine),
        policies: &[policy],
        begins: None,
    };
    Home::create(&at.join(machine.to_string()), &new).unwrap()
}

async fn start(home: &Home) -> Client {
    let client = Client::start(home, Options::default(), soon());
    client.await.unwrap()
}

fn place(client: &Client, name: &str) -> Place {
    Place {
        start: client.root(),
        path: vec![Name::new(name.as_bytes()).unwrap()],
    }
}

async fn call(client: &Client, call: Call) -> Answer {
    client.call(call, soon()).await.unwrap().answer
}

async fn write(client: &Client, name: &str, content: &[u8]) {
    let content = Content::Regular(FileContent::Inline(Bytes::copy_from_slice(content)));
    let time = Time {
        seconds: 1,
        nanos: 0,
    };
    let answer = call(
        client,
        Call::Create {
            place: place(client, name),
            number: client.new_number().unwrap(),
            inode: Box::new(Inode::new(0o644, time, content)),
            owner: None,
            replace: false.into(),
        },
    );
    let answer = answer.await;
    assert!(matches!(answer, Answer::Done(_)), "{name}: {answer:?}");
}

async fn read(client: &Client, name: &str) -> Bytes {
    let place = place(client, name);
    match call(
        client,
        Call::Lookup {
            place,
            follow: true,
        },
    )
    .await
    {
        Answer::Found(file) => match &file.inode.content {
            Content::Regular(FileContent::Inline(bytes)) => bytes.clone(),
            other => panic!("{name}: {other:?}"),
        },
        other => panic!("{name}: {other:?}"),
    }
}

fn address(running: &Running) -> SocketAddr {
    running.address.authority().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_devices_write_one_volume_over_connections_that_are_cut_anywhere() {
    let (dir, state) = (directory(), tempfile::tempdir().unwrap());
    let mut running = Running::start(dir.path(), options(), limits());
    let way = Way::new(address(&running)).await;
    let one = start(&home(state.path(), 3, &way.server())).await;
    assert_eq!(key(3).public(), founder().public());
    let two = start(&home(state.path(), 9, &way.server())).await;
    one.running(soon()).await.unwrap();
    let decision = Decision::AdmitDevice {
        device: Device(1),
        key: key(9).public(),
        user: Principal::from_bytes(USER),
    };
    assert_eq!(call(&one, Call::Decide(decision)).await, Answer::Settled);
    two.running(soon()).await.unwrap();
    for round in 0..12 {
        way.left.store(37 * round * round, Ordering::SeqCst);
        let (by_one, by_two) = (format!("one {round}"), format!("two {round}"));
        let content = [round as u8 + 1; 400];
        tokio::join!(
            write(&one, &by_one, by_one.as_bytes()),
            write(&two, &by_two, &content),
        );
        assert_eq!(read(&two, &by_one).await, by_one.as_bytes());
        assert_eq!(read(&one, &by_two).await, content.as_slice());
        let record = block(round as u64, 50_000);
        let sink = one.sink(std::time::Duration::from_secs(30));
        let put = async {
            sink.put(std::slice::from_ref(&record)).await.unwrap();
            sink.flush().await.unwrap();
        };
        tokio::time::timeout(Duration::from_secs(60), put)
            .await
            .unwrap();
        let handle = trust::Handle::<Data>::from_bytes(*record.handle.as_bytes());
        let found = two
            .blocks()
            .get(&handle, Expect::Nothing, Fetch::Until(soon()));
        assert_eq!(
            *found.await.unwrap().bytes(),
            record.frame.unpack().unwrap()
        );
        if round % 4 == 3 {
            running.stop().await;
            running = Running::start(dir.path(), options(), limits());
            *way.to.lock().unwrap() = address(&running);
        }
    }
    assert!(way.cuts.load(Ordering::SeqCst) >= 8, "{:?}", way.cuts);
    one.close(soon()).await.unwrap();
    two.close(soon()).await.unwrap();
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_that_is_no_member_is_told_so_by_an_error_that_names_the_server() {
    let (dir, state) = (directory(), tempfile::tempdir().unwrap());
    let running = Running::start(dir.path(), options(), limits());
    let (volume, policy) = policy();
    let at = running.address.to_string();
    let other = NewHome {
        volume,
        name: "v",
        server: &at,
        key: &key(77),
        policies: &[policy],
        begins: None,
    };
    let client = start(&Home::create(state.path(), &other).unwrap()).await;
    // It has been told before the deadline passes.
    let told = || matches!(client.view().connection, Connection::Offline(_));
    eventually("it is told", told).await;
    let late = Instant::now() + Duration::from_millis(500);
    let error = client.running(late).await.unwrap_err().to_string();
    assert!(
        error.contains(&at) && error.contains("no member"),
        "{error}"
    );
    client.close(soon()).await.unwrap();
    running.stop().await;
}

const KILLED: &str = "BULLA_TEST_KILLED_CLIENT";

/// Writes files from four tasks and prints the name of each that is acknowledged, until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process that killed_client_has_every_acknowledged_file kills"]
async fn client_that_is_killed() {
    let state = std::env::var_os(KILLED).unwrap();
    let home = Home::find(Path::new(&state), "v").unwrap().unwrap();
    let client = start(&home).await;
    client.running(soon()).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..4 {
        let client = client.clone();
        tasks.spawn(async move {
            for number in 0.. {
                let name = format!("{}-{task}-{number}", std::process::id());
                write(&client, &name, name.as_bytes()).await;
                println!("wrote {name}");
            }
        });
    }
    tasks.join_next().await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_client_has_every_acknowledged_file() {
    let (dir, state) = (directory(), tempfile::tempdir().unwrap());
    let running = Running::start(dir.path(), options(), limits());
    home(state.path(), 3, &running.address.to_string());
    let state = state.path().join("3");
    let mut told: Vec<String> = Vec::new();
    for round in 0..5_u64 {
        let (at, run) = (state.clone(), Duration::from_millis(60 + 97 * round));
        let lines = tokio::task::spawn_blocking(move || run_and_kill(&at, run));
        told.extend(lines.await.unwrap());
    }
    assert!(told.len() > 20, "{}", told.len());
    let home = Home::find(&state, "v").unwrap().unwrap();
    let client = start(&home).await;
    client.running(soon()).await.unwrap();
    for name in &told {
        assert_eq!(read(&client, name).await, name.as_bytes());
    }
    client.close(soon()).await.unwrap();
    running.stop().await;
}

/// Runs [`client_that_is_killed`] for a time after its first line, and kills it. Gives the names that it printed.
fn run_and_kill(state: &Path, run: Duration) -> Vec<String> {
    use std::io::BufRead;
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture"])
        .arg("shared::client::client_that_is_killed")
        .env(KILLED, state)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut until, mut names) = (None, Vec::new());
    for line in lines.map_while(Result::ok) {
        let Some(name) = line.split("wrote ").nth(1) else {
            continue;
        };
        names.push(name.to_owned());
        let until = *until.get_or_insert_with(|| Instant::now() + run);
        if Instant::now() > until && names.len() > 4 {
            child.kill().unwrap(); // lines that it wrote before still count
        }
    }
    child.wait().unwrap();
    names
}
