//! Stores by network: S3, GCS and Azure, each by its feature.
//!
//! An [`Address`] says where the store is, an [`Environment`] has the credentials: variables, a profile of the shared file
//! ([`crate::profile`]), a role that the host or its container has. Credentials are looked up anew when they expire. What the environment says of the place
//! counts only where a name is made ([`Address::completed`]): later a pool is where its name says.
//!
//! A request is made once (this crate repeats it, [`crate::Tunables`]), has the deadline that this crate sets, and is an error of its own kind
//! where no credentials are found. Certificates are those that the system trusts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use object_store::client::CredentialProvider;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use crate::address::{Address, Scheme};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);
/// How long credentials may take to be found.
const FIND: Duration = Duration::from_secs(20);

/// The store at an address. Nothing is asked of it yet.
///
/// # Errors
/// The environment has credentials that are none; this program was built without such stores.
pub fn connect(
    address: &Address,
    environment: &Environment,
) -> Result<Arc<dyn ObjectStore>, String> {
    // One provider of cryptography for all; another part of the program may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store: Arc<dyn ObjectStore> = match address.scheme {
        #[cfg(feature = "s3")]
        Scheme::S3 => s3(address, environment)?,
        #[cfg(feature = "gcs")]
        Scheme::Gcs => gcs(address, environment)?,
        #[cfg(feature = "azure")]
        Scheme::Azure => azure(address, environment)?,
        #[allow(unreachable_patterns)]
        other => return Err(format!("this program was built without '{}://'", other.name())),
    };
    Ok(match address.prefix.as_str() {
        "" => store,
        prefix => Arc::new(PrefixStore::new(store, prefix)),
    })
}

/// Each request once.
fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn client(address: &Address) -> ClientOptions {
    let plain = address.option("endpoint").is_some_and(|at| at.starts_with("http://"));
    ClientOptions::new()
        .with_allow_http(plain)
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT)
}

/// Refuses a server that would be told tokens that everybody on the way can read and use: those of Google and Azure are no signatures.
#[cfg(any(feature = "gcs", feature = "azure"))]
fn check_encrypted(address: &Address) -> Result<(), String> {
    let Some(host) = address.option("endpoint").and_then(|at| at.strip_prefix("http://")) else {
        return Ok(());
    };
    let is_here = |name: &str| {
        let rest = host.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
    };
    match ["localhost", "127.0.0.1", "[::1]"].into_iter().any(is_here) {
        true => Ok(()),
        false => {
            let scheme = address.scheme.name();
            Err(format!(
                "an endpoint of '{scheme}://' begins with https://, unless it is on this host: tokens are sent to it"
            ))
        }
    }
}

/// An error without what may be secret: those of a builder name the setting.
fn unusable(error: &object_store::Error) -> String {
    format!("its credentials or settings cannot be used: {}", crate::error::told(error))
}

/// Variables of an environment.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl std::fmt::Debug for Environment {
    /// Names alone: values may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Environment {
    /// That of this process.
    pub fn of_process() -> Self {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self(std::env::vars_os().filter_map(text).collect())
    }

    /// With these variables alone.
    pub fn of(variables: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        Self(variables.iter().map(own).collect())
    }

    /// The value of a variable that is set, and not to nothing.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Those whose names begin so and that are set, as settings are called.
    fn settings(&self, prefix: &str) -> impl Iterator<Item = (String, &String)> {
        let set = self
            .0
            .iter()
            .filter(move |(name, value)| name.starts_with(prefix) && !value.is_empty());
        set.map(|(name, value)| (name.to_ascii_lowercase(), value))
    }
}

/// A provider of credentials. Its failure says that it found no credentials.
#[derive(Debug)]
struct Found<T: std::fmt::Debug + Send + Sync> {
    inner: Arc<dyn CredentialProvider<Credential = T>>,
}

#[async_trait::async_trait]
impl<T: std::fmt::Debug + Send + Sync> CredentialProvider for Found<T> {
    type Credential = T;

    async fn get_credential(&self) -> object_store::Result<Arc<T>> {
        let none = |why: String| object_store::Error::Unauthenticated {
            path: String::new(),
            source: format!(
                "no credentials are found, in the environment of process {} or as it says: {why}",
                std::process::id()
            )
            .into(),
        };
        match tokio::time::timeout(FIND, self.inner.get_credential()).await {
            Ok(found) => found.map_err(|error| none(crate::error::told(&error))),
            Err(_) => Err(none("the role of this host is not told in time".into())),
        }
    }
}

/// Refuses what cannot be in a header of a request.
///
/// # Errors
/// Which part it is, without its value.
#[cfg(feature = "s3")]
pub(crate) fn visible(what: &str, value: &str) -> Result<(), String> {
    match value.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(()),
        false => Err(format!("{what} has letters that no credentials have")),
    }
}

#[cfg(feature = "s3")]
fn s3(address: &Address, environment: &Environment) -> Result<Arc<dyn ObjectStore>, String> {
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};
    let mut builder = AmazonS3Builder::new();
    for (name, value) in environment.settings("AWS_") {
        let Ok(key) = name.parse::<Key>() else { continue };
        let of_place = matches!(
            key,
            Key::Bucket
                | Key::Endpoint
                | Key::S3Endpoint
                | Key::Region
                | Key::DefaultRegion
                | Key::VirtualHostedStyleRequest
                | Key::S3Express
                | Key::ConditionalPut
                | Key::CopyIfNotExists
                | Key::DisableBulkDelete
                | Key::Client(_)
        );
        if matches!(key, Key::AccessKeyId | Key::SecretAccessKey | Key::Token) {
            let name = name.to_ascii_uppercase();
            visible(&name, value)
                .map_err(|why| format!("its credentials cannot be used: {why}"))?;
        }
        if !of_place {
            builder = builder.with_config(key, value);
        }
    }
    builder = builder
        .with_bucket_name(&address.bucket)
        .with_region(address.option("region").unwrap_or(crate::address::USUAL_REGION))
        // An object at a time is deleted: that is free of charge, counted, and known to all stores.
        .with_disable_bulk_delete(true)
        .with_retry(once())
        .with_client_options(client(address));
    let is_virtual = address.option("style") == Some("virtual");
    if let Some(endpoint) = address.option("endpoint") {
        builder = builder.with_endpoint(match endpoint.split_once("://") {
            Some((scheme, host)) if is_virtual => format!("{scheme}://{}.{host}", address.bucket),
            _ => endpoint.into(),
        });
    }
    builder = builder.with_virtual_hosted_style_request(is_virtual);
    let is_set = |key| builder.get_config_value(&key).is_some();
    let named = is_set(Key::AccessKeyId)
        || is_set(Key::SecretAccessKey)
        || is_set(Key::WebIdentityTokenFile)
        || is_set(Key::ContainerCredentialsRelativeUri)
        || is_set(Key::ContainerCredentialsFullUri);
    if !named && let Some(profile) = crate::profile::Profile::of(environment)? {
        builder = builder.with_credentials(Arc::new(profile));
    }
    let inner = builder.clone().build().map_err(|e| unusable(&e))?.credentials().clone();
    let builder = builder.with_credentials(Arc::new(Found { inner }));
    Ok(Arc::new(builder.build().map_err(|e| unusable(&e))?))
}

#[cfg(feature = "gcs")]
fn gcs(address: &Address, environment: &Environment) -> Result<Arc<dyn ObjectStore>, String> {
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey as Key};
    check_encrypted(address)?;
    let mut builder = GoogleCloudStorageBuilder::new();
    for (name, value) in environment.settings("GOOGLE_") {
        let Ok(key) = name.parse::<Key>() else { continue };
        if !matches!(key, Key::Bucket | Key::BaseUrl | Key::Client(_)) {
            builder = builder.with_config(key, value);
        }
    }
    builder = builder
        .with_bucket_name(&address.bucket)
        .with_retry(once())
        .with_client_options(client(address));
    if let Some(endpoint) = address.option("endpoint") {
        builder = builder.with_base_url(endpoint);
    }
    let inner = builder.clone().build().map_err(|e| unusable(&e))?.credentials().clone();
    let builder = builder.with_credentials(Arc::new(Found { inner }));
    Ok(Arc::new(builder.build().map_err(|e| unusable(&e))?))
}

#[cfg(feature = "azure")]
fn azure(address: &Address, environment: &Environment) -> Result<Arc<dyn ObjectStore>, String> {
    use object_store::azure::{AzureConfigKey as Key, MicrosoftAzureBuilder};
    let Some(account) = address.option("account") else {
        let why = "the name has no account, as in az://CONTAINER/PREFIX?account=NAME, and the environment no AZURE_STORAGE_ACCOUNT_NAME";
        return Err(why.into());
    };
    check_encrypted(address)?;
    let mut builder = MicrosoftAzureBuilder::new();
    for (name, value) in environment.settings("AZURE_") {
        let Ok(key) = name.parse::<Key>() else { continue };
        if !matches!(
            key,
            Key::ContainerName
                | Key::AccountName
                | Key::Endpoint
                | Key::UseEmulator
                | Key::Client(_)
        ) {
            builder = builder.with_config(key, value);
        }
    }
    builder = builder
        .with_container_name(&address.bucket)
        .with_account(account)
        .with_retry(once())
        .with_client_options(client(address))
        .with_allow_http(address.option("endpoint").is_some_and(|at| at.starts_with("http://")));
    if let Some(endpoint) = address.option("endpoint") {
        builder = builder.with_endpoint(endpoint.into());
    }
    let inner = builder.clone().build().map_err(|e| unusable(&e))?.credentials().clone();
    let builder = builder.with_credentials(Arc::new(Found { inner }));
    Ok(Arc::new(builder.build().map_err(|e| unusable(&e))?))
}
