//! Names of places in object stores: `s3://BUCKET/PREFIX?endpoint=URL&region=REGION`.
//!
//! A name is all that a host needs to find a pool, but for credentials. It is the path in the configuration of the device, and
//! what users type and read. So there is one spelling of each ([`Address::name`]): the options in order, no slashes at the end.
//!
//! | scheme | what comes next | options |
//! |---|---|---|
//! | `s3` | bucket and prefix | `endpoint`, `region`, `style` (`path` or `virtual`) |
//! | `gs` | bucket and prefix | `endpoint` |
//! | `az` | container and prefix | `account`, `endpoint` |
//!
//! Invariant: a name has no credentials. What looks like some is refused, and not repeated in the message.

use std::fmt;

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Amazon's, and what speaks like it.
    S3,
    /// Google's.
    Gcs,
    /// Microsoft's.
    Azure,
}

/// Options of names, in their order.
const OPTIONS: [&str; 4] = ["account", "endpoint", "region", "style"];

/// The region of a bucket of which neither name nor environment say one.
pub(crate) const USUAL_REGION: &str = "us-east-1";

/// Parts of the names of options that have credentials elsewhere.
const SECRETS: [&str; 7] = ["key", "secret", "token", "sas", "sig", "cred", "pass"];

impl Scheme {
    /// As names begin.
    pub fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
        }
    }

    fn has(self, option: &str) -> bool {
        match self {
            Self::S3 => option != "account",
            Self::Gcs => option == "endpoint",
            Self::Azure => option == "account" || option == "endpoint",
        }
    }

    /// Variables of the environment that say what a name does not, by option; the first one that is set counts.
    fn variables(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::S3 => &[
                ("endpoint", &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]),
                ("region", &["AWS_REGION", "AWS_DEFAULT_REGION"]),
            ],
            Self::Gcs => &[],
            Self::Azure => &[("account", &["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"])],
        }
    }
}

/// A place in an object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The kind of store.
    pub scheme: Scheme,
    /// The bucket, or container.
    pub bucket: String,
    /// What the names of all objects begin with, without slashes at its ends; maybe empty.
    pub prefix: String,
    /// What was said besides, by [`OPTIONS`].
    options: [Option<String>; 4],
}

impl Address {
    /// Of a name.
    ///
    /// # Errors
    /// It is no such name, and why.
    pub fn parse(name: &str) -> Result<Self, String> {
        let (scheme, rest) = name.split_once("://").ok_or("it has no scheme")?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "s3" => Scheme::S3,
            "gs" => Scheme::Gcs,
            "az" => Scheme::Azure,
            _ => {
                return Err(format!(
                    "'{scheme}://' is no kind of store that is supported: s3, gs, az and file are"
                ));
            }
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if place.contains('@') {
            return Err(secret());
        }
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.$".contains(c);
        if bucket.is_empty() || !bucket.chars().all(fits) || bucket.contains("..") {
            return Err(format!("'{bucket}' is no name of a bucket"));
        }
        let prefix = prefix.trim_end_matches('/').to_string();
        check_prefix(&prefix)?;
        let mut address =
            Self { scheme, bucket: bucket.into(), prefix, options: Default::default() };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            address.take(pair)?;
        }
        address.check_virtual()?;
        Ok(address)
    }

    /// Refuses a bucket whose name cannot be in front of the server's where it is to be.
    fn check_virtual(&self) -> Result<(), String> {
        if self.option("style") != Some("virtual") {
            return Ok(());
        }
        let of = |at: &str| Some(at.split_once("://")?.1.to_string());
        let host = self.option("endpoint").and_then(of).unwrap_or_else(|| "example".into());
        let whole = url::Url::parse(&format!("https://{}.{host}", self.bucket));
        whole.map(|_| ()).map_err(|_| {
            format!("style=virtual: '{}.{host}' is no address of a server", self.bucket)
        })
    }

    /// One option of a query.
    fn take(&mut self, pair: &str) -> Result<(), String> {
        let (option, value) =
            pair.split_once('=').ok_or_else(|| format!("option '{}' has no value", word(pair)))?;
        let lower = option.to_ascii_lowercase();
        if SECRETS.iter().any(|part| lower.contains(part)) {
            return Err(secret());
        }
        let place = OPTIONS.iter().position(|known| *known == option);
        let Some(place) = place.filter(|_| self.scheme.has(option)) else {
            return Err(format!("'{}://' has no option '{}'", self.scheme.name(), word(option)));
        };
        let value = match option {
            "endpoint" => endpoint(value)?,
            "style" if !matches!(value, "path" | "virtual") => {
                return Err("style is 'path' or 'virtual'".into());
            }
            _ if !is_word(value) || !is_label(value) => {
                return Err(format!("option '{option}' cannot have this value"));
            }
            _ => value.to_string(),
        };
        if self.options[place].replace(value).is_some() {
            return Err(format!("option '{option}' is given twice"));
        }
        Ok(())
    }

    /// An option.
    pub fn option(&self, name: &str) -> Option<&str> {
        let place = OPTIONS.iter().position(|known| *known == name)?;
        self.options[place].as_deref()
    }

    /// With what the environment says of the place and the name does not.
    ///
    /// # Errors
    /// A variable has a value that the option cannot have.
    pub fn completed(mut self, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        for (option, variables) in self.scheme.variables() {
            if self.option(option).is_some() {
                continue;
            }
            let set = variables
                .iter()
                .find_map(|name| Some((name, variable(name).filter(|value| !value.is_empty())?)));
            if let Some((name, value)) = set {
                self.take(&format!("{option}={value}"))
                    .map_err(|why| format!("{name} of the environment: {why}"))?;
            }
        }
        // What counts where nothing is said is said from now on.
        if self.scheme == Scheme::S3 && self.option("region").is_none() {
            self.take(&format!("region={USUAL_REGION}"))?;
        }
        self.check_virtual()?;
        Ok(self)
    }

    /// The places around it, from the inside out: what is stored here lies below their prefixes as well.
    pub fn outer(&self) -> Vec<Self> {
        let ends = self.prefix.rmatch_indices('/').map(|(end, _)| &self.prefix[..end]);
        let whole = (!self.prefix.is_empty()).then_some("");
        ends.chain(whole).map(|prefix| Self { prefix: prefix.into(), ..self.clone() }).collect()
    }

    /// Its name, in the one spelling.
    pub fn name(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.bucket)?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        let set = OPTIONS.iter().zip(&self.options);
        let set = set.filter_map(|(name, value)| Some((name, value.as_ref()?)));
        for (n, (name, value)) in set.enumerate() {
            write!(f, "{}{name}={value}", if n == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

fn secret() -> String {
    "credentials do not belong in the name of a device, which everyone can read: they come from the environment of the process that has the pool, a profile, or the role of the host".into()
}

/// A word that may be shown.
fn word(text: &str) -> &str {
    if is_word(text) { text } else { "..." }
}

fn is_word(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.len() <= 128 && text.chars().all(fits)
}

/// The address of a server, without a slash at its end.
fn endpoint(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let Some(rest) = rest else {
        return Err("an endpoint begins with https:// or http://".into());
    };
    if rest.contains('@') {
        return Err(secret());
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._:/[]".contains(c);
    let is_path = |path: &str| !path.trim_end_matches('/').contains("//");
    let path = rest.find('/').and_then(|at| rest.get(at..)).unwrap_or_default();
    // As those that make requests see it. A port that is not said is none that is wrong.
    let is_server = |url: url::Url| url.host().is_some() && url.port() != Some(0);
    let is_place = rest.chars().all(fits) && !rest.starts_with(['/', ':']) && is_path(path);
    if !is_place || !url::Url::parse(text).is_ok_and(is_server) {
        return Err("the endpoint is not the address of a server".into());
    }
    Ok(text.trim_end_matches('/').into())
}

/// Whether a word can be a part of the name of a server.
fn is_label(word: &str) -> bool {
    url::Url::parse(&format!("https://{word}.example/")).is_ok()
}

fn check_prefix(prefix: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.!'()+=,:/".contains(c);
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    if prefix.is_empty() || prefix.chars().all(fits) && prefix.split('/').all(is_part) {
        return Ok(());
    }
    Err("the prefix has parts or letters that not all stores take: letters, digits and -_.!'()+=,: are taken, between single slashes".into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn name(text: &str) -> Result<String, String> {
        Address::parse(text).map(|address| address.name())
    }

    #[test]
    fn a_place_has_one_spelling() {
        for (given, is) in [
            ("s3://b", "s3://b"),
            ("S3://b/", "s3://b"),
            ("s3://b/a/c/", "s3://b/a/c"),
            (
                "s3://b/p?region=x&endpoint=http://127.0.0.1:9000/",
                "s3://b/p?endpoint=http://127.0.0.1:9000&region=x",
            ),
            ("gs://b/p?endpoint=https://h", "gs://b/p?endpoint=https://h"),
            ("az://c/p?account=me", "az://c/p?account=me"),
            ("s3://b?style=virtual", "s3://b?style=virtual"),
        ] {
            assert_eq!(name(given).unwrap(), is);
            assert_eq!(name(is).unwrap(), is);
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for (given, part) in [
            ("s3://", "no name of a bucket"),
            ("s3:///x", "no name of a bucket"),
            ("s3://a b", "no name of a bucket"),
            ("s3://b//x", "prefix"),
            ("s3://b/../x", "prefix"),
            ("s3://b/x%20y", "prefix"),
            ("s3://b/x#y", "prefix"),
            ("s3://b?colour=red", "no option 'colour'"),
            ("s3://b?account=x", "no option 'account'"),
            ("gs://b?region=x", "no option 'region'"),
            ("s3://b?region", "has no value"),
            ("s3://b?region=a&region=b", "given twice"),
            ("s3://b?style=both", "'path' or 'virtual'"),
            ("s3://b?endpoint=ftp://x", "begins with https://"),
            ("s3://b?endpoint=http://", "not the address of a server"),
            ("s3://b?endpoint=http://h:99999", "not the address of a server"),
            ("s3://b?endpoint=http://h:0", "not the address of a server"),
            ("s3://b?endpoint=http://:9000", "not the address of a server"),
            ("s3://b?endpoint=http:///x", "not the address of a server"),
            ("s3://b?endpoint=http://[::1", "not the address of a server"),
            ("s3://b?endpoint=http://a::b", "not the address of a server"),
            ("s3://b?endpoint=http://1.2.3.999", "not the address of a server"),
            ("s3://b?endpoint=http://h/a//b", "not the address of a server"),
            ("gs://b?endpoint=http://xn--a", "not the address of a server"),
            ("s3://b?region=xn--a", "cannot have this value"),
            ("s3://b?style=virtual&endpoint=http://127.0.0.1:9", "no address of a server"),
            ("ftp://b/x", "'ftp://' is no kind"),
        ] {
            let why = name(given).unwrap_err();
            assert!(why.contains(part), "{given}: {why}");
        }
    }

    #[test]
    fn credentials_are_refused_and_not_repeated() {
        for given in [
            "s3://AKID:hunter2@b/x",
            "s3://b/x?endpoint=http://AKID:hunter2@h",
            "s3://b/x?aws_secret_access_key=hunter2",
            "s3://b/x?token=hunter2",
            "s3://b/x?X-Amz-Signature=hunter2",
            "s3://b/x?X-Amz-Credential=hunter2",
            "az://b/x?sig=hunter2",
            "az://b/x?access_key=hunter2",
        ] {
            let why = name(given).unwrap_err();
            assert!(why.contains("credentials do not belong"), "{given}: {why}");
            assert!(!why.contains("hunter2"), "{why}");
        }
    }

    #[test]
    fn a_place_lies_in_others() {
        let outer =
            |name| Address::parse(name).unwrap().outer().iter().map(Address::name).collect();
        let none: Vec<String> = Vec::new();
        let of: Vec<String> = outer("s3://b/x/y/z?region=r");
        assert_eq!(of, ["s3://b/x/y?region=r", "s3://b/x?region=r", "s3://b?region=r"]);
        assert_eq!((outer("gs://b/x"), outer("gs://b")), (vec!["gs://b".to_string()], none));
    }

    #[test]
    fn the_environment_completes_a_name() {
        let set = |name: &str| match name {
            "AWS_ENDPOINT_URL" => Some("http://h:1/".to_string()),
            "AWS_DEFAULT_REGION" => Some("eu".to_string()),
            "AWS_REGION" => Some(String::new()),
            _ => None,
        };
        let of = |name| Address::parse(name).unwrap().completed(set).unwrap().name();
        assert_eq!(of("s3://b"), "s3://b?endpoint=http://h:1&region=eu");
        assert_eq!(of("s3://b?region=us"), "s3://b?endpoint=http://h:1&region=us");
        assert_eq!(of("gs://b"), "gs://b");
        let nothing = Address::parse("s3://b").unwrap().completed(|_| None).unwrap();
        assert_eq!(nothing.name(), "s3://b?region=us-east-1");
        let bad = |_: &str| Some("http://k:hunter2@h".to_string());
        let why = Address::parse("s3://b").unwrap().completed(bad).unwrap_err();
        assert!(why.starts_with("AWS_ENDPOINT_URL_S3 of the environment: "), "{why}");
        assert!(!why.contains("hunter2"), "{why}");
    }
}
