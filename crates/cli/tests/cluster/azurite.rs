//! Azurite, which speaks as Azure's Blob Storage does: one process on a port of this host. It says what it was given on disk now and then, so that it must
//! not be killed; it can stand still.

use cenote_objects::{Address, Environment, connect};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The account that it has, and that one's key, which everybody knows.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const CONTAINER: &str = "pools";
/// How long it may take to answer after it was started.
const START: Duration = Duration::from_secs(60);

/// Makes a container: the only request for which there is no other client here.
const MAKE: &str = "
const [port, account, container, key] = process.argv.slice(1);
const headers = {'x-ms-date': new Date().toUTCString(), 'x-ms-version': '2021-08-06'};
const named = Object.keys(headers).sort().map(name => `${name}:${headers[name]}\\n`).join('');
const what = 'PUT' + '\\n'.repeat(12) + named + `/${account}/${account}/${container}\\nrestype:container`;
const sum = require('crypto').createHmac('sha256', Buffer.from(key, 'base64')).update(what);
headers.Authorization = `SharedKey ${account}:${sum.digest('base64')}`;
headers['Content-Length'] = 0;
const path = `/${account}/${container}?restype=container`;
const request = {host: '127.0.0.1', port, method: 'PUT', path, headers};
require('http').request(request, answer => process.exit(answer.statusCode == 201 ? 0 : 1)).end();
";

/// Where `scripts/setup.sh azure` puts the program.
fn program() -> PathBuf {
    let below = "../../target/azurite/node_modules/azurite/dist/src/blob/main.js";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(below);
    assert!(path.exists(), "{} is missing: scripts/setup.sh azure", path.display());
    path
}

pub struct Azurite {
    child: Child,
    port: u16,
}

impl Azurite {
    /// Starts it with its files in a directory, and makes a container.
    pub fn new(dir: &Path) -> Azurite {
        let port = crate::seaweed::ports(1)[0];
        let log = File::create(dir.join("azurite.log")).unwrap();
        // It ends with this test, whatever becomes of that.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "node"]).arg(program());
        command.args(["--silent", "--disableTelemetry", "--skipApiVersionCheck"]);
        command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string(), "--location"]);
        command.arg(dir).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        let azurite = Azurite { child, port };
        let end = Instant::now() + START;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "no answer: see azurite.log");
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut make = Command::new("node");
        make.args(["-e", MAKE, "--", &port.to_string(), ACCOUNT, CONTAINER, KEY]);
        let made = cenote_testpools::output(&mut make);
        assert!(made.status.success(), "no container: {made:?}");
        azurite
    }

    /// What a device there is called.
    pub fn device(&self, prefix: &str) -> String {
        let endpoint = format!("http://127.0.0.1:{}/{ACCOUNT}", self.port);
        format!("az://{CONTAINER}/{prefix}?account={ACCOUNT}&endpoint={endpoint}")
    }

    /// The credentials.
    pub fn credentials(&self) -> [(&'static str, &'static str); 1] {
        [("AZURE_STORAGE_ACCOUNT_KEY", KEY)]
    }

    /// It gives no answer for a while.
    pub fn stands_still(&self, time: Duration) {
        eprintln!("Azurite stands still for {time:?}");
        let process = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(process, Signal::STOP).unwrap();
        std::thread::sleep(time);
        kill_process(process, Signal::CONT).unwrap();
    }

    /// How many objects a device has.
    pub fn objects(&self, device: &str) -> usize {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let address = Address::parse(device).unwrap();
        let store = connect(&address, &Environment::of(&self.credentials())).unwrap();
        let found = runtime.block_on(store.list_with_delimiter(None)).unwrap();
        found.objects.len() + found.common_prefixes.len()
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
