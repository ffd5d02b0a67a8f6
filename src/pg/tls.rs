//! TLS as libpq's sslmode, sslrootcert, sslcert and sslkey ask for it, by rustls.
//!
//! In: [`TlsOptions`]. Out: a connector for tokio-postgres, and words for what goes wrong. Called by [`super::target`].
//! Differences from libpq: a certificate must name its hosts as subjectAltName (the common name does not count), a key must
//! not be encrypted, and revocation lists are not read. It must never accept a certificate that a stricter mode refuses.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::ParsedCertificate,
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How far TLS is wanted, in libpq's words (PostgreSQL manual, "SSL Support").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SslMode {
    /// Never.
    Disable,
    /// Only where the server insists.
    Allow,
    /// Where the server has it: the default.
    Prefer,
    /// Always; the certificate is checked only where a root certificate is there.
    Require,
    /// Always, with a certificate from a known authority.
    VerifyCa,
    /// The same, and the certificate must name the host.
    VerifyFull,
}

impl std::str::FromStr for SslMode {
    type Err = String;

    fn from_str(text: &str) -> Result<SslMode, String> {
        match text {
            "disable" => Ok(SslMode::Disable),
            "allow" => Ok(SslMode::Allow),
            "prefer" => Ok(SslMode::Prefer),
            "require" => Ok(SslMode::Require),
            "verify-ca" => Ok(SslMode::VerifyCa),
            "verify-full" => Ok(SslMode::VerifyFull),
            _ => Err(format!(
                "sslmode is {text:?}: use disable, allow, prefer, require, verify-ca or verify-full"
            )),
        }
    }
}

/// What was given; defaults are libpq's files in `~/.postgresql`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsOptions {
    /// sslmode.
    pub mode: SslMode,
    /// sslrootcert: a file, or `system`.
    pub root_cert: Option<String>,
    /// sslcert.
    pub cert: Option<String>,
    /// sslkey.
    pub key: Option<String>,
}

/// Why there can be no connector: the user must act.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Certificates are to be checked, but against what?
    #[error(
        "sslmode={mode} needs the certificate of the server's authority, but there is no {}\n  help: name the file by sslrootcert, or give sslrootcert=system for the authorities that this machine trusts", path.display()
    )]
    NoRoot {
        /// `verify-ca` or `verify-full`.
        mode: &'static str,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The system's authorities with a mode that does not check host names.
    #[error(
        "sslrootcert=system checks too little without the host's name\n  help: give sslmode=verify-full too"
    )]
    WeakSystem,
    /// A file cannot be used.
    #[error("{what} {} cannot be used: {reason}", path.display())]
    File {
        /// `sslrootcert`, `sslcert` or `sslkey`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system trusts nobody.
    #[error(
        "sslrootcert=system: no authority is known to this machine ({reason})\n  help: sudo apt-get install ca-certificates"
    )]
    NoSystemRoots {
        /// What was tried.
        reason: String,
    },
}

/// Makes a connector.
///
/// # Errors
/// [`Error`], each with what to do.
pub fn connector(options: &TlsOptions) -> Result<MakeRustlsConnect, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Verifier::new(options, &provider)?);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the cipher suites of TLS 1.2 and 1.3")
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match client_identity(options)? {
        Some((chain, key, path)) => {
            let failed =
                |error: rustls::Error| Error::File { what: "sslkey", path, reason: error.to_string() };
            builder.with_client_auth_cert(chain, key).map_err(failed)?
        }
        None => builder.with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

/// A file of libpq's own folder.
fn default_file(name: &str) -> PathBuf {
    std::env::home_dir().unwrap_or_else(|| PathBuf::from("/nonexistent")).join(".postgresql").join(name)
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, PathBuf);

/// The certificate that is shown to a server that asks for one.
fn client_identity(options: &TlsOptions) -> Result<Option<Identity>, Error> {
    let cert_path = options.cert.as_ref().map_or_else(|| default_file("postgresql.crt"), PathBuf::from);
    if options.cert.is_none() && !cert_path.exists() {
        return Ok(None);
    }
    let key_path = options.key.as_ref().map_or_else(|| default_file("postgresql.key"), PathBuf::from);
    let chain = certificates("sslcert", &cert_path)?;
    let key = PrivateKeyDer::from_pem_file(&key_path).map_err(|error| {
        let reason = format!("{error} (a private key in PEM without a password is needed)");
        Error::File { what: "sslkey", path: key_path.clone(), reason }
    })?;
    Ok(Some((chain, key, key_path)))
}

/// All certificates of a PEM file.
fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let failed = |reason: String| Error::File { what, path: path.to_owned(), reason };
    let found = CertificateDer::pem_file_iter(path).map_err(|error| failed(error.to_string()))?;
    let found: Result<Vec<_>, _> = found.collect();
    let found = found.map_err(|error| failed(error.to_string()))?;
    if found.is_empty() { Err(failed("it holds no certificate".to_owned())) } else { Ok(found) }
}

/// Checks a server's certificate as far as the mode asks.
#[derive(Debug)]
struct Verifier {
    /// Certificates of sslrootcert.
    roots: Vec<CertificateDer<'static>>,
    /// `None` where nothing is checked.
    chain: Option<Arc<WebPkiServerVerifier>>,
    checks_name: bool,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(options: &TlsOptions, provider: &Arc<CryptoProvider>) -> Result<Verifier, Error> {
        let mode = match options.mode {
            SslMode::VerifyFull => Some("verify-full"),
            SslMode::VerifyCa => Some("verify-ca"),
            _ => None,
        };
        let path = options.root_cert.as_ref().map_or_else(|| default_file("root.crt"), PathBuf::from);
        let roots = match (options.root_cert.as_deref(), mode) {
            (Some("system"), Some("verify-full")) => system_roots()?,
            (Some("system"), _) => return Err(Error::WeakSystem),
            (Some(_), _) => certificates("sslrootcert", &path)?,
            (None, _) if path.exists() => certificates("sslrootcert", &path)?,
            (None, Some(mode)) => return Err(Error::NoRoot { mode, path }),
            (None, None) => Vec::new(),
        };
        let chain = if roots.is_empty() {
            None
        } else {
            let mut store = RootCertStore::empty();
            let (_, refused) = store.add_parsable_certificates(roots.iter().cloned());
            let unusable = |reason: String| Error::File { what: "sslrootcert", path: path.clone(), reason };
            if store.is_empty() {
                return Err(unusable(format!("none of its {refused} certificates can be read")));
            }
            let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(provider));
            Some(builder.build().map_err(|error| unusable(error.to_string()))?)
        };
        let checks_name = options.mode == SslMode::VerifyFull;
        Ok(Verifier { roots, chain, checks_name, provider: Arc::clone(provider) })
    }
}

fn system_roots() -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let reasons: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        return Err(Error::NoSystemRoots { reason: reasons.join(", ") });
    }
    Ok(found.certs)
}

impl Verifier {
    /// Checks a handshake's signature; who is not asked for a certificate of worth need not prove that it is theirs.
    fn signature(
        &self,
        verify: impl FnOnce(&WebPkiSupportedAlgorithms) -> Result<HandshakeSignatureValid, rustls::Error>,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match self.chain {
            None => Ok(HandshakeSignatureValid::assertion()),
            Some(_) => verify(&self.provider.signature_verification_algorithms),
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        // The usual self-signed certificate of a server is its own authority: named by the user, it is trusted as it is.
        if self.roots.iter().any(|root| root.as_ref() == end_entity.as_ref()) {
            if self.checks_name {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            }
            return Ok(ServerCertVerified::assertion());
        }
        let verified = chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is looked at last: everything else holds.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.checks_name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(|algorithms| rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(|algorithms| rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Says in plain words why a handshake failed, and what to do; `None` where the reason is another.
#[must_use]
pub fn explain(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(inner) = cause {
        if let Some(error) = inner.downcast_ref::<rustls::Error>() {
            return Some(words(error));
        }
        let wrapped = inner.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if let Some(error) = wrapped.and_then(|error| error.downcast_ref::<rustls::Error>()) {
            return Some(words(error));
        }
        cause = inner.source();
    }
    None
}

const STRANGER: &str = "the server's certificate is not from the authority in sslrootcert\n  help: name the certificate \
                        of the authority that made it, or the server's own if it is self-signed";

fn words(error: &rustls::Error) -> String {
    use CertificateError as Bad;
    match error {
        rustls::Error::InvalidCertificate(reason) => match reason {
            Bad::UnknownIssuer | Bad::BadSignature => STRANGER.to_owned(),
            // A self-signed one that is not the root itself.
            other if format!("{other:?}").contains("CaUsedAsEndEntity") => STRANGER.to_owned(),
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => {
                "the server's certificate is for another host\n  help: connect by a name that its subjectAltName has, \
                 or give sslmode=verify-ca if you trust whatever host has a certificate of that authority"
                    .to_owned()
            }
            Bad::Expired | Bad::ExpiredContext { .. } => "the server's certificate has expired".to_owned(),
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet: is this machine's clock right?".to_owned()
            }
            other => format!("the server's certificate is refused: {other}"),
        },
        rustls::Error::AlertReceived(alert) => {
            format!("the server refused the TLS handshake ({alert:?}): it may want a client's certificate (sslcert, sslkey)")
        }
        other => format!("the TLS handshake failed: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(mode: SslMode, root_cert: Option<&str>) -> TlsOptions {
        TlsOptions { mode, root_cert: root_cert.map(str::to_owned), cert: None, key: None }
    }

    fn refused(options: &TlsOptions) -> String {
        connector(options).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn what_cannot_be_checked_is_refused_before_a_connection_is_made() {
        let missing = refused(&options(SslMode::VerifyFull, Some("/nonexistent/root.crt")));
        assert!(missing.starts_with("sslrootcert /nonexistent/root.crt cannot be used: "), "{missing}");
        let weak = refused(&options(SslMode::Require, Some("system")));
        assert!(weak.contains("give sslmode=verify-full too"), "{weak}");
        let empty = tempfile::NamedTempFile::new().unwrap();
        let empty = refused(&options(SslMode::VerifyCa, empty.path().to_str()));
        assert!(empty.ends_with("it holds no certificate"), "{empty}");
        let identity =
            TlsOptions { cert: Some("/nonexistent.crt".to_owned()), ..options(SslMode::Require, None) };
        assert!(refused(&identity).starts_with("sslcert /nonexistent.crt cannot be used"));
    }

    #[test]
    fn modes_are_libpqs() {
        assert_eq!("verify-ca".parse(), Ok(SslMode::VerifyCa));
        assert!("verify_full".parse::<SslMode>().unwrap_err().contains("verify-full"));
    }
}
