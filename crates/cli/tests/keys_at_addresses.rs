//! Keys at `https://` and `http://` addresses through the real binary: servers in this process, plain ones and such with certificates
//! of a test authority.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use cenote_testpools::output;
use common::tank::Tank;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const HEX: &str = "df226b439a2fd448ea43a3a44512ef7c534ce6ffd1a881a02c9b5306a1e27ad7";
const PHRASE: &str = "correct horse battery";

/// What a server answers to a path. What comes after `/to/` in it is where it moves to.
fn answer(path: &str, port: u16, secure: bool) -> Vec<u8> {
    let with = |head: &str, body: &[u8]| {
        let head = format!(
            "HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body].concat()
    };
    let moved = |to: &str| {
        let head = format!(
            "HTTP/1.1 302 Found\r\nLocation: {to}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
        head.into_bytes()
    };
    let scheme = if secure { "https" } else { "http" };
    if let Some(to) = path.strip_prefix("/to/") {
        return moved(to);
    }
    match path {
        "/hex" => with("200 OK", HEX.as_bytes()),
        "/line" => with("200 OK", format!("{HEX}\nwhat follows\n").as_bytes()),
        "/phrase" => with("200 OK", format!("{PHRASE}\n").as_bytes()),
        "/raw" => with("200 OK", &[7; 32]),
        "/raw33" => with("200 OK", &[7; 33]),
        "/long" => with("200 OK", &vec![b'a'; 1 << 20]),
        "/wrong" => with("200 OK", HEX.replace('d', "e").as_bytes()),
        "/moved" => moved(&format!("{scheme}://localhost:{port}/hex")),
        "/round" => moved("/round"),
        "/plain" => moved(&format!("http://localhost:{port}/hex")),
        // Less than is said.
        "/short" => b"HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\ndf226b".to_vec(),
        _ => with("404 Not Found", HEX.as_bytes()),
    }
}

fn serve(mut stream: impl Read + Write, port: u16, secure: bool) {
    let (mut request, mut byte) = (Vec::new(), [0; 1]);
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => request.push(byte[0]),
            _ => return,
        }
    }
    let request = String::from_utf8_lossy(&request);
    let path = request.split(' ').nth(1).unwrap_or_default();
    if path == "/hangs" {
        std::thread::sleep(Duration::from_secs(60));
    }
    let _ = stream.write_all(&answer(path, port, secure));
    let _ = stream.flush();
}

/// Starts a server; its port.
fn server(tls: Option<Arc<ServerConfig>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let tls = tls.clone();
            std::thread::spawn(move || match tls {
                None => serve(stream, port, false),
                Some(config) => {
                    let connection = ServerConnection::new(config).unwrap();
                    let mut stream: StreamOwned<_, TcpStream> =
                        StreamOwned::new(connection, stream);
                    serve(&mut stream, port, true);
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                }
            });
        }
    });
    port
}

/// An authority, and what it has signed.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    der: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let made = params.self_signed(&key).unwrap();
        let (pem, der) = (made.pem(), made.der().clone());
        Authority { issuer: Issuer::new(params, key), pem, der }
    }

    /// A certificate, and its key.
    fn signed(&self, purpose: ExtendedKeyUsagePurpose) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.extended_key_usages = vec![purpose];
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// A server that shows a certificate, and asks for one if `clients` are to have it.
    fn server(&self, clients: bool) -> u16 {
        let (certificate, key) = self.signed(ExtendedKeyUsagePurpose::ServerAuth);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            false => builder.with_no_client_auth(),
            true => {
                let mut roots = RootCertStore::empty();
                roots.add(self.der.clone()).unwrap();
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        server(Some(Arc::new(
            builder.with_single_cert(vec![certificate.der().clone()], key).unwrap(),
        )))
    }
}

/// What `zfs load-key -n` of `tank/e` says of the key at an address, with these variables.
fn checked(tank: &Tank, location: &str, variables: &[(&str, &Path)]) -> Result<(), String> {
    let mut command = tank.session.command();
    command.args(["zfs", "load-key", "-n", "-L", location, "tank/e"]);
    command.envs(variables.iter().copied());
    let done = output(&mut command);
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr)
            .lines()
            .next()
            .unwrap_or_default()
            .to_string()),
    }
}

/// A pool with `tank/e`, whose key is at an address.
fn encrypted(how: &str) -> Tank {
    let tank = Tank::unmounted();
    tank.zfs(&format!("create -o encryption=on {how} tank/e"));
    tank
}

#[test]
fn keys_are_fetched() {
    let port = server(None);
    let at = |path: &str| format!("http://localhost:{port}/{path}");
    for (format, path, more) in [
        ("hex", "hex", ""),
        ("raw", "raw", ""),
        ("passphrase", "phrase", "-o pbkdf2iters=100000"),
        ("hex", "moved", ""),
        ("hex", "line", ""),
    ] {
        let place = at(path);
        let tank = encrypted(&format!("-o keyformat={format} -o keylocation={place} {more}"));
        assert_eq!(tank.get("keylocation,keystatus", "tank/e"), format!("{place}\navailable"));
        tank.zfs("unload-key tank/e");
        tank.zfs("load-key tank/e");
        tank.zfs("unload-key tank/e");
        tank.zfs(&format!("load-key -L {place} tank/e"));
        // Another key, at another place.
        let other = at("phrase");
        tank.zfs(&format!(
            "change-key -o keyformat=passphrase -o keylocation={other} -o pbkdf2iters=100000 tank/e"
        ));
        let dir = tank.session.dir.path().display().to_string();
        tank.session.run("zpool export tank").ok();
        tank.session.run(&format!("zpool import -l -d {dir} tank")).ok();
        assert_eq!(tank.get("keystatus,keylocation", "tank/e"), format!("available\n{other}"));
        tank.zfs("set keylocation=https://localhost/key tank/e");
        tank.finish();
    }
}

#[test]
fn what_is_no_key_is_told() {
    let port = server(None);
    let at = |path: &str| format!("http://localhost:{port}/{path}");
    let tank = encrypted(&format!("-o keyformat=hex -o keylocation={}", at("hex")));
    let why = |location: &str| checked(&tank, location, &[]).unwrap_err();
    let load = |why: &str| format!("Key load error: {why}");
    assert_eq!(why(&at("nothing")), load(&format!("Couldn't GET {}: 404", at("nothing"))));
    assert_eq!(why(&at("long")), load("Hex key too long (expected 64)."));
    assert_eq!(why(&at("phrase")), load("Hex key too short (expected 64)."));
    assert_eq!(why(&at("wrong")), load("Incorrect key provided for 'tank/e'."));
    for path in ["round", "short"] {
        let said = why(&at(path));
        assert!(said.starts_with(&load(&format!("Failed to connect to {}: ", at(path)))), "{said}");
        assert!(!said.contains("df226b"), "{said}");
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = format!("http://localhost:{free}/hex");
    assert!(why(&nobody).starts_with(&load(&format!("Failed to connect to {nobody}: "))));
    assert_eq!(why("ftp://localhost/hex"), load("URI scheme is not supported"));
    assert_eq!(why("https://"), load("URI scheme is not supported"));
    let invalid = tank.refused("set keylocation=ftp://localhost/key tank/e");
    assert!(invalid.contains("invalid keylocation"), "{invalid}");
    let raw =
        format!("create -o encryption=on -o keyformat=raw -o keylocation={} tank/r", at("raw33"));
    assert!(tank.refused(&raw).contains("Raw key too long (expected 32)."));
    assert_eq!(checked(&tank, &at("hex"), &[]), Ok(()));
    tank.finish();
}

/// A server that does not answer is given up after half a minute; meanwhile other commands go on.
#[test]
fn a_server_that_hangs_is_given_up() {
    let port = server(None);
    let tank = encrypted(&format!("-o keyformat=hex -o keylocation=http://localhost:{port}/hex"));
    let place = format!("http://localhost:{port}/hangs");
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| checked(&tank, &place, &[]).unwrap_err());
        tank.zfs("create tank/meanwhile");
        assert!(begun.elapsed() < Duration::from_secs(25));
        let why = waits.join().unwrap();
        assert!(why.contains("timeout"), "{why}");
    });
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(28) && took < Duration::from_secs(50), "{took:?}");
    tank.finish();
}

#[test]
fn certificates_are_checked() {
    let plain = server(None);
    let tank = encrypted(&format!("-o keyformat=hex -o keylocation=http://localhost:{plain}/hex"));
    let (authority, other) = (Authority::new(), Authority::new());
    let file = |name: &str, text: &str| {
        let path = tank.session.path(name);
        fs::write(&path, text).unwrap();
        path
    };
    let (ca, wrong) = (file("ca.pem", &authority.pem), file("other.pem", &other.pem));
    let dir = tank.session.path("certs");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("0a1b2c3d.0"), &authority.pem).unwrap();
    fs::write(dir.join("README"), "no certificate").unwrap();
    let at = format!("https://localhost:{}/", authority.server(false));
    let (hex, failed) = (format!("{at}hex"), format!("Key load error: Failed to connect to {at}"));
    assert_eq!(checked(&tank, &hex, &[("SSL_CA_CERT_FILE", &ca)]), Ok(()));
    assert_eq!(checked(&tank, &hex, &[("SSL_CA_CERT_PATH", &dir)]), Ok(()));
    assert_eq!(checked(&tank, &format!("{at}moved"), &[("SSL_CA_CERT_FILE", &ca)]), Ok(()));
    for unknown in [&[][..], &[("SSL_CA_CERT_FILE", wrong.as_path())]] {
        let why = checked(&tank, &hex, unknown).unwrap_err();
        assert!(why.starts_with(&failed) && why.contains("certificate"), "{why}");
    }
    // From http to https, where certificates count as well.
    let moves = format!("http://localhost:{plain}/to/{hex}");
    assert_eq!(checked(&tank, &moves, &[("SSL_CA_CERT_FILE", &ca)]), Ok(()));
    for unknown in [&[][..], &[("SSL_CA_CERT_FILE", wrong.as_path())]] {
        let why = checked(&tank, &moves, unknown).unwrap_err();
        let failed = format!("Key load error: Failed to connect to {moves}: ");
        assert!(why.starts_with(&failed) && why.contains("certificate"), "{why}");
    }
    // Another name than the certificate's.
    let by_number = hex.replace("localhost", "127.0.0.1");
    assert!(checked(&tank, &by_number, &[("SSL_CA_CERT_FILE", &ca)]).is_err());
    // Not from https to http.
    let why = checked(&tank, &format!("{at}plain"), &[("SSL_CA_CERT_FILE", &ca)]).unwrap_err();
    assert!(why.starts_with(&failed), "{why}");
    let none = tank.session.path("none.pem");
    let why = checked(&tank, &hex, &[("SSL_CA_CERT_FILE", &none)]).unwrap_err();
    assert!(why.contains("none.pem: No such file or directory"), "{why}");

    // A server that asks who is there.
    let (certificate, key) = authority.signed(ExtendedKeyUsagePurpose::ClientAuth);
    let cert = file("client.pem", &certificate.pem());
    let secret = file("client.key", &key.serialize_pem());
    let both = file("both.pem", &(certificate.pem() + &key.serialize_pem()));
    let hex = format!("https://localhost:{}/hex", authority.server(true));
    let ca = ("SSL_CA_CERT_FILE", ca.as_path());
    let known = [ca, ("SSL_CLIENT_CERT_FILE", &cert), ("SSL_CLIENT_KEY_FILE", &secret)];
    assert_eq!(checked(&tank, &hex, &known), Ok(()));
    assert_eq!(checked(&tank, &hex, &[ca, ("SSL_CLIENT_CERT_FILE", &both)]), Ok(()));
    assert!(checked(&tank, &hex, &[ca]).is_err());
    let why = checked(&tank, &hex, &[ca, ("SSL_CLIENT_CERT_FILE", &cert)]).unwrap_err();
    assert!(why.contains("client.pem: no private key"), "{why}");
    // A key that is another certificate's, and PEM with something else in it.
    let (_, others) = other.signed(ExtendedKeyUsagePurpose::ClientAuth);
    let others = file("others.key", &others.serialize_pem());
    let broken = |what: &str| format!("-----BEGIN {what}-----\nAAAA\n-----END {what}-----\n");
    let no_key = file("broken.key", &broken("PRIVATE KEY"));
    let no_cert = file("broken.pem", &broken("CERTIFICATE"));
    for (cert, key, named) in [
        (&cert, &others, "others.key: "),
        (&cert, &no_key, "broken.key: "),
        (&no_cert, &secret, "broken.pem: "),
    ] {
        let both = [ca, ("SSL_CLIENT_CERT_FILE", cert), ("SSL_CLIENT_KEY_FILE", key)];
        let why = checked(&tank, &hex, &both).unwrap_err();
        assert!(why.starts_with("Key load error: ") && why.contains(named), "{why}");
    }
    tank.finish();
}
