//! How `call` and `bench` reach a service: a port or a Unix socket, plain or over TLS; and, where it does not, why.

use std::{
    error::Error,
    fs, io,
    net::Ipv6Addr,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::Args;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::rustls::{self, AlertDescription, CertificateError};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tower::service_fn;

use super::{Failure, terminal::human};
use crate::settings::{is_abstract, socket_path};

/// Where services listen that say nothing else, ours and the reference's.
const GRPC_PORT: u16 = 8081;

/// Whom a certificate of a socket's other end is for, unless `--name` says otherwise: there is no host to compare.
const NAME_ON_SOCKETS: &str = "localhost";

#[derive(Args, Clone, Debug)]
pub(super) struct Service {
    /// Where the service listens for gRPC: HOST, HOST:PORT, https://HOST:PORT for TLS, or unix:PATH
    addr: At,

    #[command(flatten)]
    tls: Tls,
}

/// How to speak TLS, and whether.
#[derive(Args, Clone, Debug)]
pub(super) struct Tls {
    /// Speak TLS; any of the following four means it, too
    #[arg(long = "tls")]
    wanted: bool,

    /// PEM file of authorities to trust [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,

    /// PEM file of a certificate to show; needs its key
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(super) cert: Option<PathBuf>,

    /// PEM file of that certificate's key
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(super) key: Option<PathBuf>,

    /// The name that the service's certificate must have [default: the address's host]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// A connection as the system gives it.
#[derive(Debug)]
pub(super) enum Dialed {
    Port(TcpStream),
    Socket(UnixStream),
}

/// Where a service listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// `host:port`, and whether TLS is spoken there, where the address tells.
    Port(String, Option<bool>),
    Socket(PathBuf),
}

impl Service {
    pub(super) fn new(addr: At, tls: Tls) -> Self {
        Self { addr, tls }
    }

    /// What it is called in messages.
    pub(super) fn shown(&self) -> String {
        match &self.addr {
            At::Port(authority, _) => authority.clone(),
            At::Socket(path) => format!("unix:{}", path.display()),
        }
    }

    /// # Errors
    /// Wrong paths and names, with 64; no connection, with 2.
    pub(super) async fn connect(&self, within: Duration) -> Result<Channel, Failure> {
        let endpoint = self.endpoint().map_err(Failure::usage)?;
        let connecting = async {
            match &self.addr {
                At::Port(..) => endpoint.connect().await,
                At::Socket(path) => {
                    let path = as_the_kernel_has_it(path);
                    let connector = service_fn(move |_| {
                        let path = path.clone();
                        async move { UnixStream::connect(path).await.map(TokioIo::new) }
                    });
                    endpoint.connect_with_connector(connector).await
                }
            }
        };
        match tokio::time::timeout(within, connecting).await {
            Ok(connected) => connected.map_err(|why| Failure::call(self.unreachable(&why))),
            Err(_) => Err(Failure::call(self.silent(within))),
        }
    }

    /// A connection for who speaks HTTP/2 himself; TLS is left to him.
    ///
    /// # Errors
    /// There is none.
    pub(super) async fn dial(&self) -> io::Result<Dialed> {
        match &self.addr {
            At::Port(authority, _) => {
                let stream = TcpStream::connect(authority).await?;
                stream.set_nodelay(true)?;
                Ok(Dialed::Port(stream))
            }
            At::Socket(path) => UnixStream::connect(as_the_kernel_has_it(path)).await.map(Dialed::Socket),
        }
    }

    pub(super) fn silent(&self, within: Duration) -> String {
        format!(
            "{} did not answer within {}: is the address right, and is nothing in between that drops packets?",
            self.shown(),
            human(within)
        )
    }

    /// Files of certificates, and the name that the service's must have.
    pub(super) fn tls(&self) -> (&Tls, &str) {
        let host = match &self.addr {
            // An IPv6 address stands in brackets.
            At::Port(authority, _) => authority.rsplit_once(':').map_or(&**authority, |(host, _)| host),
            At::Socket(_) => NAME_ON_SOCKETS,
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (&self.tls, self.tls.name.as_deref().unwrap_or(host))
    }

    pub(super) fn wants_tls(&self) -> bool {
        let implied = self.tls.ca.is_some() || self.tls.cert.is_some() || self.tls.name.is_some();
        self.tls.wanted || implied || matches!(self.addr, At::Port(_, Some(true)))
    }

    pub(super) fn endpoint(&self) -> Result<Endpoint, String> {
        let wrong = || format!("write it as HOST:PORT, such as 127.0.0.1:{GRPC_PORT}");
        let tls = self.wants_tls();
        let scheme = if tls { "https" } else { "http" };
        let authority = match &self.addr {
            At::Port(_, Some(false)) if tls => {
                return Err(format!("http:// is without TLS: write {} alone", self.shown()));
            }
            At::Port(authority, _) => authority,
            At::Socket(_) => NAME_ON_SOCKETS,
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{authority}")).map_err(|_| wrong())?;
        let endpoint = endpoint.tcp_nodelay(true);
        if !tls {
            return Ok(endpoint);
        }
        let mut config = ClientTlsConfig::new();
        config = match &self.tls.ca {
            Some(file) => config.ca_certificate(Certificate::from_pem(pem("--ca", file, "CERTIFICATE")?)),
            None => config.with_native_roots(),
        };
        if let (Some(cert), Some(key)) = (&self.tls.cert, &self.tls.key) {
            let cert = pem("--cert", cert, "CERTIFICATE")?;
            config = config.identity(Identity::from_pem(cert, pem("--key", key, "PRIVATE KEY")?));
        }
        if let Some(name) = &self.tls.name {
            config = config.domain_name(name);
        }
        endpoint.tls_config(config).map_err(|why| format!("--ca, --cert, --key, --name: {}", root(&why)))
    }

    pub(super) fn unreachable(&self, why: &(dyn Error + 'static)) -> String {
        let at = self.shown();
        if let Some(why) = self.refused_by_tls(why) {
            return why;
        }
        match io_error(why).map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => {
                format!("nothing listens on {at} (connection refused): is `tollgate serve` running there?")
            }
            Some(io::ErrorKind::NotFound) => {
                format!("there is no {at}: is `tollgate serve` running there, with GRPC_UDS?")
            }
            Some(io::ErrorKind::PermissionDenied) => {
                format!("{at} lets you not in (permission denied): GRPC_UDS_MODE sets whom it does")
            }
            // Whoever expects a preface hangs up on a handshake.
            Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) if self.wants_tls() => {
                format!("{at} ended the handshake: does it speak TLS?")
            }
            _ => format!("cannot connect to {at}: {}", root(why)),
        }
    }

    /// What is said of whoever listens there and answers something else.
    pub(super) fn no_grpc(&self, why: &(dyn Error + 'static)) -> String {
        format!(
            "{} does not speak gRPC as it should ({}): is it the gRPC port, {GRPC_PORT} by default, and without TLS \
             (--tls)?",
            self.shown(),
            root(why)
        )
    }

    /// What became of a connection that ended before it gave any answer. In TLS 1.3 a client hears what the service thinks
    /// of it after the handshake, and often nothing but that the connection is closed.
    pub(super) fn cut(&self, why: &(dyn Error + 'static)) -> Option<String> {
        let likely = match &self.tls.cert {
            _ if !self.wants_tls() => return None,
            None => "it may let nobody in without a certificate (--cert and --key show one)".to_owned(),
            Some(cert) => format!("it may not accept the certificate in {}", cert.display()),
        };
        let ended = || format!("{} ended the connection right after the handshake: {likely}", self.shown());
        Some(self.refused_by_tls(why).unwrap_or_else(ended))
    }

    /// What went wrong in a handshake, and what to do.
    fn refused_by_tls(&self, why: &(dyn Error + 'static)) -> Option<String> {
        let at = self.shown();
        let error = tls_error(why)?;
        let name = self.tls.name.as_deref().unwrap_or("that host");
        Some(match error {
            rustls::Error::InvalidMessage(_) => {
                format!("{at} speaks no TLS: ask without (no --tls, no https://), or is it another port?")
            }
            // Authorities may have one name and two keys.
            rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => match &self.tls.ca {
                Some(ca) => {
                    format!("the certificate of {at} is not signed by an authority in {}", ca.display())
                }
                None => format!(
                    "the certificate of {at} is not signed by an authority that this system trusts: --ca names a file with others"
                ),
            },
            rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => format!("the certificate of {at} is not for {name} ({error}): --name says another name"),
            // `openssl req -x509` makes such ones; clients in Go take them.
            rustls::Error::InvalidCertificate(CertificateError::Other(why))
                if why.to_string().contains("CaUsedAsEndEntity") =>
            {
                format!(
                    "the certificate of {at} is an authority's own, which no server may show: let it sign another, or make \
                     it with basicConstraints=CA:FALSE"
                )
            }
            rustls::Error::InvalidCertificate(_) => {
                format!("the certificate of {at} cannot be trusted: {error}")
            }
            rustls::Error::AlertReceived(alert) => self.told_by(*alert),
            other => format!("no TLS with {at}: {other}"),
        })
    }

    fn told_by(&self, alert: AlertDescription) -> String {
        use AlertDescription::{
            AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateUnknown,
            DecryptError, HandshakeFailure, UnknownCA,
        };
        let at = self.shown();
        match (alert, &self.tls.cert) {
            (CertificateRequired | HandshakeFailure | BadCertificate, None) => {
                format!("{at} lets nobody in without a certificate: --cert and --key show one")
            }
            (
                UnknownCA | BadCertificate | CertificateUnknown | CertificateExpired | DecryptError
                | AccessDenied,
                Some(cert),
            ) => format!("{at} does not accept the certificate in {} ({alert:?})", cert.display()),
            _ => format!("{at} refused the handshake: {alert:?}"),
        }
    }
}

impl FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            // As a URL an absolute path has two slashes before it.
            return socket_path(path.strip_prefix("//").unwrap_or(path)).map(Self::Socket);
        }
        let (bare, tls) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(bare), _) => (bare, Some(false)),
            (_, Some(bare)) => (bare, Some(true)),
            _ => (text, None),
        };
        let bare = bare.trim_end_matches('/');
        let with_port = if bare.parse::<Ipv6Addr>().is_ok() {
            format!("[{bare}]:{GRPC_PORT}")
        } else if bare.ends_with(']') || !bare.contains(':') {
            format!("{bare}:{GRPC_PORT}")
        } else {
            bare.to_owned()
        };
        let wrong = || format!("write it as HOST:PORT, such as 127.0.0.1:{GRPC_PORT}, or as unix:PATH");
        let authority: http::uri::Authority = with_port.parse().map_err(|_| wrong())?;
        let ported = authority.port().is_some_and(|port| port.as_u16() > 0);
        if !ported || authority.host().is_empty() || authority.as_str().contains('@') {
            return Err(wrong());
        }
        Ok(Self::Port(with_port, tls))
    }
}

/// `@` is a NUL there.
fn as_the_kernel_has_it(path: &Path) -> PathBuf {
    let mut bytes = path.as_os_str().as_bytes().to_vec();
    if is_abstract(path) {
        bytes[0] = 0;
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

pub(super) fn pem(flag: &str, file: &Path, what: &str) -> Result<Vec<u8>, String> {
    let text = fs::read(file).map_err(|why| format!("{flag}: {} cannot be read: {why}", file.display()))?;
    let holds = String::from_utf8_lossy(&text)
        .lines()
        .any(|line| line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&format!("{what}-----")));
    if holds { Ok(text) } else { Err(format!("{flag}: {} holds no PEM {what}", file.display())) }
}

fn io_error<'e>(why: &'e (dyn Error + 'static)) -> Option<&'e io::Error> {
    chain(why).find_map(|why| why.downcast_ref())
}

/// It stands within an I/O error, which does not name it as its source.
fn tls_error<'e>(why: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let within = |why: &'e (dyn Error + 'static)| {
        let inner = why.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.and_then(|inner| inner.downcast_ref()).or_else(|| why.downcast_ref())
    };
    chain(why).find_map(within)
}

/// The innermost cause, which is the one that says something ("transport error" does not).
fn root(why: &(dyn Error + 'static)) -> String {
    chain(why).last().map(ToString::to_string).unwrap_or_default()
}

/// An error and what caused it.
pub(super) fn chain<'e>(why: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(why), |&why| why.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_leave_out_what_is_usual() {
        for (text, at, tls) in [
            ("127.0.0.1:9", "127.0.0.1:9", None),
            ("http://a.example:1/", "a.example:1", Some(false)),
            ("https://a.example", "a.example:8081", Some(true)),
            ("localhost", "localhost:8081", None),
            ("[::1]:9", "[::1]:9", None),
            ("[::1]", "[::1]:8081", None),
            ("::1", "[::1]:8081", None),
        ] {
            assert_eq!(text.parse(), Ok(At::Port(at.into(), tls)), "{text}");
        }
        for (text, path) in [("unix:/r.sock", "/r.sock"), ("unix:///r.sock", "/r.sock"), ("unix:@r", "@r")] {
            assert_eq!(text.parse(), Ok(At::Socket(path.into())), "{text}");
        }
        for text in [
            "",
            ":9",
            "a b",
            "ftp://a:1",
            "a:x",
            "a:0",
            "a:99999",
            "a:1/path",
            "a:b:c:d",
            "[::1",
            "unix:",
            "u@a:1",
        ] {
            assert!(text.parse::<At>().is_err(), "{text}");
        }
    }
}
