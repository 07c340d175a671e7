//! Spaces in a store that is reached by network: the protocol of S3, with a server in this process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cenote_objects::{Address, Cause, Class, Environment, Error, Space, Tunables, connect};
use cenote_teststore::{Conditions, Fault, Server};
use object_store::ObjectStore;
use object_store::path::Path;

const KIB: u64 = 1 << 10;

fn quick() -> Tunables {
    Tunables {
        object_bytes: 64 << 10,
        log_bytes: 2000,
        inline_bytes: 300,
        page_entries: 8,
        deadline: Duration::from_secs(2),
        pause: Duration::from_millis(5),
        pause_max: Duration::from_millis(50),
        budget: Duration::from_secs(40),
        grace: Duration::ZERO,
        ..Tunables::default()
    }
}

fn store(server: &Server, prefix: &str) -> Arc<dyn ObjectStore> {
    store_with(server, prefix, &Server::environment())
}

fn store_with(server: &Server, prefix: &str, by: &[(&str, &str)]) -> Arc<dyn ObjectStore> {
    let address = Address::parse(&server.device(prefix)).unwrap();
    connect(&address, &Environment::of(by)).unwrap()
}

async fn try_create(store: Arc<dyn ObjectStore>) -> Result<Space, Error> {
    Space::create(store, Path::default(), quick(), "heron", b"zero").await
}

async fn create(server: &Server) -> Space {
    try_create(store(server, "tank")).await.unwrap()
}

async fn open(server: &Server, host: &str) -> Space {
    let store = store(server, "tank");
    Space::look(store, Path::default(), quick()).await.unwrap().open(host).await.unwrap()
}

fn bytes(length: u64, seed: u64) -> Bytes {
    (0..length).map(|i| (i.wrapping_mul(seed + 7) >> 3) as u8).collect::<Vec<u8>>().into()
}

/// Blocks that a space must have.
#[derive(Default)]
struct Model(Vec<(u64, u64, u64)>);

impl Model {
    async fn write(&mut self, space: &Space, length: u64) {
        let seed = self.0.len() as u64;
        let address = space.allocate(length).unwrap();
        space.write(address, bytes(length, seed)).await.unwrap();
        self.0.push((address, length, seed));
    }

    async fn check(&self, space: &Space) {
        let blocks: Vec<(u64, u64)> = self.0.iter().map(|(at, length, _)| (*at, *length)).collect();
        let read = space.read(&blocks, Class::Sync).await;
        for ((at, length, seed), read) in self.0.iter().zip(read) {
            assert_eq!(read.unwrap(), bytes(*length, *seed), "{at:#x}");
        }
    }

    /// What is on the server is what the space names.
    async fn audit(&self, space: &Space, server: &Server) {
        space.sweep().await.unwrap();
        space.tidy().await;
        let audit = space.audit().await.unwrap();
        assert!(audit.missing.is_empty() && audit.left.is_empty(), "{audit:?}");
        let listed = server.names().into_iter().filter(|name| name != "tank/commit").count() as u64;
        assert!(listed >= space.totals().objects, "{listed} {:?}", space.totals());
    }
}

/// It is written, read, opened by another host, and deleted: by the protocol's conditional PUTs, ranges and listings.
#[tokio::test(flavor = "multi_thread")]
async fn a_space_by_network() {
    let server = Server::new();
    let space = create(&server).await;
    let mut model = Model::default();
    for group in 1..6 {
        for n in 1..20 {
            model.write(&space, n * 2 * KIB).await;
        }
        space.commit(group, b"payload").await.unwrap();
    }
    model.check(&space).await;
    let (at, length, _) = model.0.remove(3);
    space.free(at, length).unwrap();
    space.commit(6, b"six").await.unwrap();
    model.audit(&space, &server).await;
    // The root is one object, which is replaced where it has the ETag that was read.
    assert!(server.names().contains(&"tank/commit".to_string()), "{:?}", server.names());

    let second = open(&server, "egret").await;
    model.check(&second).await;
    let error = space.commit(7, b"seven").await.unwrap_err();
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    assert!(error.to_string().contains("host egret"), "{error}");
    second.commit(7, b"seven").await.unwrap();
    model.audit(&second, &server).await;

    let other = try_create(store(&server, "tank-2")).await.unwrap();
    let error = try_create(store(&server, "tank")).await.err().unwrap();
    assert!(matches!(error, Error::Exists(_)), "{error}");
    assert!(second.erase().await.unwrap() > 0);
    assert!(second.commit(8, b"eight").await.is_err());
    assert!(server.names().iter().all(|name| name.starts_with("tank-2/")), "{:?}", server.names());
    other.commit(1, b"one").await.unwrap();
    // The place is free again.
    create(&server).await.commit(1, b"one").await.unwrap();
}

/// Whatever a request meets once or twice, nothing is lost and nothing is left over.
#[tokio::test(flavor = "multi_thread")]
async fn faults_pass() {
    let faults = [
        Fault::Answer(503, "SlowDown"),
        Fault::Answer(500, "InternalError"),
        Fault::Answer(400, "ExpiredToken"),
        Fault::Answer(400, "RequestTimeout"),
        Fault::Answer(400, "IncompleteBody"),
        Fault::Answer(403, "RequestTimeTooSkewed"),
        Fault::Answer(409, "ConditionalRequestConflict"),
        Fault::Reset,
        Fault::ResetAfter,
        Fault::Half,
        Fault::Slow(Duration::from_millis(700)),
        // Longer than the deadline: it is done after it was given up.
        Fault::Slow(Duration::from_millis(2500)),
    ];
    let tasks = faults.map(|fault| {
        tokio::spawn(async move {
            for method in ["PUT", "GET", "LIST", "DELETE"] {
                // A conflict is an answer to a PUT.
                if matches!(fault, Fault::Answer(409, _)) && method != "PUT" {
                    continue;
                }
                let server = Server::new();
                let (space, mut model) = (create(&server).await, Model::default());
                for group in 1..4 {
                    server.inject(method, "tank", 2, fault);
                    for n in 1..20 {
                        model.write(&space, n * KIB).await;
                    }
                    if group == 2 {
                        let (at, length, _) = model.0.remove(5);
                        space.free(at, length).unwrap();
                    }
                    space.commit(group, b"payload").await.unwrap();
                    model.check(&space).await;
                    space.tidy().await;
                }
                let again = open(&server, "egret").await;
                model.check(&again).await;
                model.audit(&again, &server).await;
                assert!(server.met() > 0, "{method} {fault:?}");
            }
        })
    });
    for task in tasks {
        task.await.unwrap();
    }
}

/// A server refuses a range behind the end (416), or an object in an archive (403): that is said of the object, not of the store.
#[tokio::test(flavor = "multi_thread")]
async fn one_object_that_cannot_be_read_is_no_outage() {
    let server = Server::new();
    let (space, mut model) = (create(&server).await, Model::default());
    for _ in 0..12 {
        model.write(&space, 10 * KIB).await;
    }
    space.commit(1, b"payload").await.unwrap();
    let mut all = server.copy();
    let name = all.keys().find(|name| name.ends_with("/0000000000")).unwrap().clone();
    all.insert(name.clone(), all[&name].slice(..30 << 10));
    server.restore(&all);
    let read = async |n: usize| {
        let (at, length, _) = model.0[n];
        space.read(&[(at, length)], Class::Sync).await.remove(0)
    };
    let before = server.requests();
    assert!(read(2).await.is_ok() && read(6).await.is_ok());
    let error = read(4).await.unwrap_err();
    assert!(error.cause() == Some(Cause::Cut) && !error.is_outage(), "{error}");
    assert_eq!(server.requests()["GET"] - before.get("GET").unwrap_or(&0), 3);
    server.inject("GET", "/0000000000", 1, Fault::Answer(403, "InvalidObjectState"));
    let error = read(0).await.unwrap_err();
    assert!(error.cause() == Some(Cause::Archived) && !error.is_outage(), "{error}");
    assert!(error.to_string().contains("moved to an archive"), "{error}");
    assert!(read(0).await.is_ok());
}

/// What does not pass is told by name, at once, with what to do.
#[tokio::test(flavor = "multi_thread")]
async fn errors_are_told_by_name() {
    let server = Server::new();
    for (status, code, cause, part) in [
        (403, "AccessDenied", Cause::Denied, "reading, writing, listing and deleting"),
        (403, "SignatureDoesNotMatch", Cause::Unknown, "correct the credentials"),
        (404, "NoSuchBucket", Cause::NoBucket, "the bucket does not exist"),
        (301, "PermanentRedirect", Cause::Region, "correct the region"),
        (400, "AuthorizationHeaderMalformed", Cause::Region, "correct the region"),
        (501, "NotImplemented", Cause::Unsupported, "does not offer this"),
    ] {
        server.inject("*", "tank", u64::MAX, Fault::Answer(status, code));
        let begun = std::time::Instant::now();
        let error = try_create(store(&server, "tank")).await.err().unwrap();
        assert_eq!(error.cause(), Some(cause), "{code}: {error}");
        assert!(error.to_string().contains(part), "{code}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(3), "{code}: {:?}", begun.elapsed());
        server.heal();
    }
    assert_eq!(server.names(), [""; 0]);
    let stranger = [("AWS_ACCESS_KEY_ID", "SOMEONE"), ("AWS_SECRET_ACCESS_KEY", "x")];
    let error = try_create(store_with(&server, "tank", &stranger)).await.err().unwrap();
    assert_eq!(error.cause(), Some(Cause::Unknown), "{error}");
    let [key, _] = Server::environment();
    let wrong = [key, ("AWS_SECRET_ACCESS_KEY", "hunter2")];
    let error = try_create(store_with(&server, "tank", &wrong)).await.err().unwrap();
    assert_eq!(error.cause(), Some(Cause::Unknown), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    let address = Address::parse(&server.device("x").replace("bucket/", "basket/")).unwrap();
    let elsewhere = connect(&address, &Environment::of(&Server::environment())).unwrap();
    let error = try_create(elsewhere).await.err().unwrap();
    assert_eq!(error.cause(), Some(Cause::NoBucket), "{error}");
    // Half a pair is no credentials.
    let address = Address::parse(&server.device("x")).unwrap();
    let error = connect(&address, &Environment::of(&[key])).unwrap_err();
    assert!(error.contains("credentials or settings cannot be used"), "{error}");
}

/// Where there are no credentials at all that is said, whatever the host's metadata service does.
#[tokio::test(flavor = "multi_thread")]
async fn no_credentials() {
    let server = Server::new();
    let metadata = [("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")];
    let store = store_with(&server, "tank", &metadata);
    let tunables = Tunables { budget: Duration::from_millis(300), ..quick() };
    let error = Space::look(store, Path::default(), tunables).await.err().unwrap();
    assert_eq!(error.cause(), Some(Cause::Credentials), "{error}");
    assert!(error.to_string().contains("no credentials are found"), "{error}");
}

/// A profile of the shared file is read again when it changes: expired credentials are renewed while a space is in use.
#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_renewed() {
    let server = Server::new();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("credentials");
    let [(_, key), (_, secret)] = Server::environment();
    let text =
        |key| format!("[work]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n");
    std::fs::write(&file, text(key)).unwrap();
    let named = file.to_str().unwrap();
    let by = [("AWS_PROFILE", "work"), ("AWS_SHARED_CREDENTIALS_FILE", named)];
    let space = try_create(store_with(&server, "tank", &by)).await.unwrap();
    let mut model = Model::default();
    model.write(&space, 4 * KIB).await;
    let touch = |text: String, seconds| {
        std::fs::write(&file, text).unwrap();
        let time = std::time::SystemTime::now() + Duration::from_secs(seconds);
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
    };
    touch(text("EXPIRED"), 5);
    let error = space.commit(1, b"one").await.unwrap_err();
    assert_eq!(error.cause(), Some(Cause::Unknown), "{error}");
    touch(text(key), 10);
    space.commit(1, b"one").await.unwrap();
    model.check(&space).await;
    let by = [("AWS_PROFILE", "other"), ("AWS_SHARED_CREDENTIALS_FILE", named)];
    let address = Address::parse(&server.device("tank")).unwrap();
    let error = connect(&address, &Environment::of(&by)).unwrap_err();
    assert!(error.contains("profile 'other'") && error.contains("no such profile"), "{error}");
}

/// Stores that do not keep to conditions are refused, and nothing of the try stays; those that can only create keep their roots one
/// after the other.
#[tokio::test(flavor = "multi_thread")]
async fn conditions() {
    let server = Server::new();
    for (conditions, part) in [
        (Conditions::Ignored, "the store ignores conditions"),
        (Conditions::Refused, "If-None-Match"),
        (Conditions::Weakened, "does not take the version (ETag) that it gave"),
    ] {
        server.conditions(conditions);
        let error = try_create(store(&server, "tank")).await.err().unwrap();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(server.names(), [""; 0]);
    }
    server.conditions(Conditions::CreateOnly);
    let (space, mut model) = (create(&server).await, Model::default());
    for group in 1..40 {
        model.write(&space, 3 * KIB).await;
        space.commit(group, b"payload").await.unwrap();
        space.tidy().await;
    }
    let again = open(&server, "egret").await;
    model.check(&again).await;
    assert!(matches!(space.commit(40, b"x").await.unwrap_err(), Error::Fenced { .. }));
    model.audit(&again, &server).await;
    again.erase().await.unwrap();
    assert_eq!(server.names(), [""; 0]);
}

/// A listing that is late leaves nothing for good, and deletes nothing that is in use.
#[tokio::test(flavor = "multi_thread")]
async fn listings_may_be_late() {
    let server = Server::new();
    let (space, mut model) = (create(&server).await, Model::default());
    model.write(&space, 30 * KIB).await;
    space.commit(1, b"one").await.unwrap();
    server.lag(Duration::from_secs(3600));
    // A group that ends with a crash.
    for _ in 0..4 {
        let address = space.allocate(60 * KIB).unwrap();
        space.write(address, bytes(60 * KIB, 1)).await.unwrap();
    }
    space.close().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(space);
    let second = open(&server, "egret").await;
    model.write(&second, 20 * KIB).await;
    second.commit(2, b"two").await.unwrap();
    second.sweep().await.unwrap();
    model.check(&second).await;
    drop(second);
    server.lag(Duration::ZERO);
    let third = open(&server, "heron").await;
    model.check(&third).await;
    model.audit(&third, &server).await;
    // What no listing has is deleted with the rest.
    server.lag(Duration::from_secs(3600));
    third.erase().await.unwrap();
    assert_eq!(server.names(), [""; 0]);
}

/// A server may repeat what was sent to it, and say much: neither is shown.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_says_is_short_and_has_no_secrets() {
    let server = Server::new();
    let token = "TOKEN-OF-A-SESSION";
    let [key, secret] = Server::environment();
    let by = [key, secret, ("AWS_SESSION_TOKEN", token)];
    for code in ["SignatureDoesNotMatch", ""] {
        server.inject("*", "tank", u64::MAX, Fault::Echo(403, code));
        let error = try_create(store_with(&server, "tank", &by)).await.err().unwrap().to_string();
        assert!(error.contains(code) && error.contains("403"), "{error}");
        for part in [token, key.1, "list-type", "x-amz"] {
            assert!(!error.contains(part), "{part}: {error}");
        }
        assert!(error.len() < 600, "{}", error.len());
        server.heal();
    }
    // An object that no space has is not read.
    server.restore(&[("tank/commit".into(), vec![0; 130 << 20].into())].into());
    let look = Space::look(store(&server, "tank"), Path::default(), quick()).await;
    let error = look.err().unwrap().to_string();
    assert!(error.contains("none has more than"), "{error}");
}

/// A server that takes a request for names and never answers is given up like others; a folder's mark is nothing, and a name that no pool has
/// is named.
#[tokio::test(flavor = "multi_thread")]
async fn listings() {
    let server = Server::new();
    let tunables = Tunables {
        deadline: Duration::from_millis(300),
        budget: Duration::from_secs(1),
        ..quick()
    };
    server.inject("LIST", "tank", u64::MAX, Fault::Slow(Duration::from_secs(3600)));
    let begun = std::time::Instant::now();
    let made = Space::create(store(&server, "tank"), Path::default(), tunables, "heron", b"").await;
    let error = made.err().unwrap();
    assert!(error.is_outage() && begun.elapsed() < Duration::from_secs(5), "{error}");
    server.heal();
    let mark = ("tank/".to_string(), Bytes::new());
    server.restore(&[mark].into());
    let space = create(&server).await;
    space.commit(1, b"one").await.unwrap();
    space.erase().await.unwrap();
    assert_eq!(server.names(), ["tank/"]);
    server.restore(&[("tank//x".to_string(), "x".into())].into());
    let error = try_create(store(&server, "tank")).await.err().unwrap();
    assert_eq!(error.cause(), Some(Cause::Name), "{error}");
    assert!(error.to_string().contains("tank//x"), "{error}");
    server.restore(&[("tank/notes.txt".to_string(), "x".into())].into());
    let error = try_create(store(&server, "tank")).await.err().unwrap().to_string();
    assert!(error.starts_with("there is an object 'notes.txt': delete"), "{error}");
}

/// What was named and cannot be used is an error; what is set to nothing is not set.
#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_were_named_are_those_that_count() {
    let server = Server::new();
    let address = Address::parse(&server.device("tank")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).display().to_string()
    };
    let (missing, role) = (dir.path().join("missing"), "[default]\nrole_arn = x\n");
    let half = "[default]\naws_access_key_id = a\naws_secret_access_key =\n";
    for (named, part) in [
        (missing.display().to_string(), "missing"),
        (file("role", role), "it has no aws_access_key_id"),
        (file("half", half), "it has no aws_access_key_id"),
        (file("other", "[work]\n"), "no such profile"),
    ] {
        let by = [("AWS_SHARED_CREDENTIALS_FILE", named.as_str())];
        let error = connect(&address, &Environment::of(&by)).unwrap_err();
        assert!(error.contains(part) && error.contains(&named), "{error}");
    }
    // A file that nobody named counts if it has the usual profile.
    let home = dir.path().display().to_string();
    let by = [("HOME", home.as_str())];
    connect(&address, &Environment::of(&by)).unwrap();
    file(".aws/credentials", "[work]\n");
    connect(&address, &Environment::of(&by)).unwrap();
    file(".aws/credentials", role);
    connect(&address, &Environment::of(&by)).unwrap_err();
    let [(_, key), (_, secret)] = Server::environment();
    let text = format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n");
    file(".aws/credentials", &text);
    let empty = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];
    let mut by: Vec<(&str, &str)> = empty.iter().map(|name| (*name, "")).collect();
    by.push(("HOME", &home));
    try_create(store_with(&server, "tank", &by)).await.unwrap().erase().await.unwrap();
    let [key, secret] = Server::environment();
    let by = [key, secret, ("AWS_SESSION_TOKEN", "")];
    try_create(store_with(&server, "tank", &by)).await.unwrap();
    // What cannot be in a header is refused before a request is made, and not repeated.
    for name in empty {
        let wrong = ("AWS_SESSION_TOKEN", "fine");
        let by =
            [key, secret, wrong].map(|(n, v)| (n, if n == name { "hunter2\u{e9}" } else { v }));
        let error = connect(&address, &Environment::of(&by)).unwrap_err();
        assert!(error.contains(name) && !error.contains("hunter2"), "{error}");
    }
    assert!(!format!("{:?}", Environment::of(&[secret])).contains(secret.1));
}

/// A root that was stored without an answer is this host's, and no other host's: its space is deleted all the same. So is one whose root is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_space_whose_last_root_had_no_answer_is_deleted() {
    let server = Server::new();
    let hasty = Tunables { budget: Duration::from_millis(300), ..quick() };
    let make = async || {
        let store = store(&server, "tank");
        let made = Space::create(store, Path::default(), hasty.clone(), "heron", b"").await;
        let (space, mut model) = (made.unwrap(), Model::default());
        model.write(&space, 4 * KIB).await;
        space.commit(1, b"one").await.unwrap();
        space
    };
    let space = make().await;
    let before = server.copy()["tank/commit"].clone();
    server.inject("PUT", "tank/commit", u64::MAX, Fault::ResetAfter);
    server.inject("GET", "tank/commit", u64::MAX, Fault::Answer(503, "SlowDown"));
    space.commit(2, b"two").await.unwrap_err();
    assert_ne!(server.copy()["tank/commit"], before);
    server.heal();
    assert!(space.erase().await.unwrap() > 0);
    assert_eq!(server.names(), [""; 0]);
    let space = make().await;
    let mut copy = server.copy();
    copy.remove("tank/commit");
    server.restore(&copy);
    assert!(space.erase().await.unwrap() > 0);
    assert_eq!(server.names(), [""; 0]);
    // Another host's is left to it.
    let space = make().await;
    let second = open(&server, "egret").await;
    let error = space.erase().await.unwrap_err();
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    assert!(second.erase().await.unwrap() > 0);
}
