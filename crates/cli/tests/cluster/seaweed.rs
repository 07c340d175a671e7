//! SeaweedFS: one master, three volume servers, a filer and a gateway that speaks S3, each a process of its own on ports of this host.
//!
//! Every byte is on two of the three volume servers (replication 001), so one of them may die at any time. What the others keep (names, places) is
//! in files before they answer, though maybe not on the disk yet: a process that is killed has it when it is started again.

use cenote_testpools::Random;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The user that the gateway knows.
const KEY: &str = "cluster";
const SECRET: &str = "cluster-secret";
const BUCKET: &str = "pools";
/// How long a node may take to answer after it was started.
const START: Duration = Duration::from_secs(90);
/// How long a node is away at most.
const AWAY: u64 = 4_000;

/// What becomes of a node.
#[derive(Debug, Clone, Copy)]
enum Harm {
    /// It is killed, and started again.
    Killed,
    /// It stands still for a while: its connections stay, and get no answer.
    Stopped,
}

/// A process of the store.
struct Node {
    name: String,
    arguments: Vec<String>,
    /// Where it answers when it is up.
    port: u16,
    child: Option<Child>,
}

impl Node {
    fn process(&self) -> Pid {
        let child = self.child.as_ref().unwrap_or_else(|| panic!("{} does not run", self.name));
        Pid::from_raw(child.id().try_into().unwrap()).unwrap()
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

pub struct Cluster {
    dir: PathBuf,
    nodes: Vec<Node>,
    /// The master, for the program's own shell.
    master: String,
    gateway: u16,
    /// How often nodes were killed, and how often stopped.
    pub harmed: [u64; 2],
}

/// Ports that are free at the moment, of those that the system gives no connection of its own accord: a node that is away for a while has its one
/// when it is back.
pub fn ports(count: usize) -> Vec<u16> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let first: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
    let from = (1024 + std::process::id() as u16 % 8192).min(first.saturating_sub(1024)).max(1024);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut all: Vec<u16> = (from..first).filter(free).take(count).collect();
    // Where the system gives connections nearly all ports, some of these have to do. They are all held until each is known.
    let more: Vec<TcpListener> =
        (all.len()..count).map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap()).collect();
    all.extend(more.iter().map(|listener| listener.local_addr().unwrap().port()));
    all
}

/// Where `scripts/setup.sh s3` puts the program.
fn program() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/seaweedfs/weed");
    assert!(path.exists(), "{} is missing: scripts/setup.sh s3", path.display());
    path
}

impl Cluster {
    /// Starts all nodes in a directory, and makes a bucket.
    pub fn new(dir: &Path) -> Cluster {
        let ports = ports(12);
        let at = |n: usize| format!("127.0.0.1:{}.{}", ports[2 * n], ports[2 * n + 1]);
        let identities = dir.join("identities.json");
        let user = format!(
            r#"{{"identities": [{{"name": "{KEY}", "credentials": [{{"accessKey": "{KEY}", "secretKey": "{SECRET}"}}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"]}}]}}"#
        );
        fs::write(&identities, user).unwrap();
        let mut nodes = Vec::new();
        let mut add = |n: usize, name: &str, kind: &str, more: &[String]| {
            let of_its_own = dir.join(name);
            fs::create_dir_all(&of_its_own).unwrap();
            let mut arguments: Vec<String> =
                ["-logtostderr=true", kind, "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
                    .map(Into::into)
                    .into();
            arguments.push(format!("-port={}", ports[2 * n]));
            arguments.push(format!("-port.grpc={}", ports[2 * n + 1]));
            arguments
                .extend(more.iter().map(|word| word.replace("DIR", of_its_own.to_str().unwrap())));
            nodes.push(Node { name: name.into(), arguments, port: ports[2 * n], child: None });
        };
        let words = |line: String| line.split(' ').map(String::from).collect::<Vec<_>>();
        add(0, "master", "master", &words("-mdir=DIR -peers=none -telemetry=false -defaultReplication=001 -volumeSizeLimitMB=256".into()));
        for n in 1..=3 {
            add(
                n,
                &format!("volume-{n}"),
                "volume",
                &words(format!("-dir=DIR -max=64 -master={} -preStopSeconds=0", at(0))),
            );
        }
        add(
            4,
            "filer",
            "filer",
            &words(format!(
                "-master={} -defaultStoreDir=DIR -defaultReplicaPlacement=001 -localSocket=DIR/socket",
                at(0)
            )),
        );
        add(
            5,
            "gateway",
            "s3",
            &words(format!(
                "-filer={} -config={} -localSocket=DIR/socket -port.iceberg=0 -port.lance=0",
                at(4),
                identities.display()
            )),
        );
        let (master, gateway) = (at(0), ports[10]);
        let mut cluster = Cluster { dir: dir.into(), nodes, master, gateway, harmed: [0; 2] };
        for n in 0..cluster.nodes.len() {
            cluster.start(n);
        }
        cluster.make_bucket();
        cluster
    }

    /// Starts a node, and waits until it answers.
    fn start(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let log = self.dir.join(format!("{}.log", node.name));
        let log = File::options().create(true).append(true).open(log).unwrap();
        // It ends with this test, whatever becomes of that.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program()).args(&node.arguments);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        node.child = Some(command.current_dir(&self.dir).spawn().unwrap());
        let end = Instant::now() + START;
        while TcpStream::connect(("127.0.0.1", node.port)).is_err() {
            let ended = node.child.as_mut().and_then(|child| child.try_wait().unwrap());
            assert!(
                ended.is_none() && Instant::now() < end,
                "{} does not answer: {ended:?}",
                node.name
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The bucket is there once the filer knows of the master, and that of enough volume servers.
    fn make_bucket(&self) {
        let end = Instant::now() + START;
        loop {
            let mut shell = Command::new(program());
            shell.args(["shell", &format!("-master={}", self.master)]).current_dir(&self.dir);
            shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = shell.spawn().unwrap();
            let line = format!("s3.bucket.create -name {BUCKET}\ns3.bucket.list\n");
            child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            if said.lines().any(|line| line.trim_start().starts_with(&format!("{BUCKET}\t"))) {
                return;
            }
            assert!(Instant::now() < end, "no bucket: {output:?}");
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// What a device there is called.
    pub fn device(&self, prefix: &str) -> String {
        format!(
            "s3://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{}&region=us-east-1",
            self.gateway
        )
    }

    /// The credentials.
    pub fn environment() -> [(&'static str, &'static str); 2] {
        [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)]
    }

    /// Something happens to a node; when this returns all nodes run, though they may not know of each other yet. Volume servers are hit most.
    pub fn harm(&mut self, random: &mut Random) {
        let n = match random.below(8) {
            0 => 0,
            1 => 4,
            2 | 3 => 5,
            more => 1 + (more % 3) as usize,
        };
        let harm = if random.below(3) == 0 { Harm::Stopped } else { Harm::Killed };
        let away = Duration::from_millis(random.below(AWAY));
        eprintln!("{} is {harm:?} for {away:?}", self.nodes[n].name);
        self.harmed[harm as usize] += 1;
        match harm {
            Harm::Killed => {
                self.nodes[n].kill();
                std::thread::sleep(away);
                self.start(n);
            }
            Harm::Stopped => {
                let process = self.nodes[n].process();
                kill_process(process, Signal::STOP).unwrap();
                std::thread::sleep(away);
                kill_process(process, Signal::CONT).unwrap();
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.kill();
            if std::thread::panicking() {
                let log = fs::read_to_string(self.dir.join(format!("{}.log", node.name)));
                let log = log.unwrap_or_default();
                let lines: Vec<_> = log.lines().collect();
                eprintln!(
                    "the last of {}: {:#?}",
                    node.name,
                    &lines[lines.len().saturating_sub(30)..]
                );
            }
        }
    }
}
