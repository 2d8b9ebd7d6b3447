//! Which ports are opened, and what is spoken there.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    raw::{Reader, SettingsError},
    values,
};

/// Which ports are opened. Port 0 is any free one; the log says which.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The service, health and reflection.
    pub grpc: GrpcAt,
    /// How TLS is spoken there; `None` is plain text.
    pub grpc_tls: Option<GrpcTls>,
    /// How old connections become there.
    pub grpc_age: GrpcAge,
    /// `/healthcheck`, `/ready`, `/metrics`, `/json`.
    pub http: Endpoint,
    /// `/rlconfig`, `/rules`.
    pub debug: Endpoint,
}

/// Where gRPC listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcAt {
    /// On a port.
    Tcp(Endpoint),
    /// On a Unix socket, and on no port: `GRPC_UDS`.
    Unix {
        /// Its file; one that begins with `@` is a name without a file (Linux calls it abstract).
        path: PathBuf,
        /// The file's permissions; `None` is what the process' umask leaves.
        mode: Option<u32>,
    },
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Of which interface.
    pub host: IpAddr,
    /// 0 is any free one.
    pub port: u16,
}

/// How old connections on the gRPC port become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrpcAge {
    /// When a client is told to open another, give or take a tenth; `None` is never.
    pub told: Option<Duration>,
    /// How long what is in flight has from then on; `None` is without end.
    pub grace: Option<Duration>,
}

/// How TLS is spoken on the gRPC port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcTls {
    /// A PEM file of our certificate, and those between it and its authority.
    pub cert: PathBuf,
    /// A PEM file of its key.
    pub key: PathBuf,
    /// Who is let in; everybody, where there is none.
    pub client: Option<GrpcClients>,
}

/// Which clients are let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcClients {
    /// A PEM file of authorities: a client's certificate has to be signed by one.
    pub ca: PathBuf,
    /// The name that it must have besides.
    pub name: Option<String>,
}

pub(super) fn listen(read: &Reader<'_>, compat: bool) -> Result<Listen, SettingsError> {
    let endpoint = |host, port| {
        Ok(Endpoint { host: read.one(host, values::host)?, port: read.one(port, values::port)? })
    };
    Ok(Listen {
        grpc: grpc(read, endpoint("GRPC_HOST", "GRPC_PORT")?)?,
        grpc_tls: grpc_tls(read)?,
        grpc_age: GrpcAge {
            told: read.one("GRPC_MAX_CONNECTION_AGE", values::age)?,
            grace: read.one("GRPC_MAX_CONNECTION_AGE_GRACE", values::age)?,
        },
        http: endpoint("HOST", "PORT")?,
        debug: Endpoint {
            host: read.opt("DEBUG_HOST", values::host)?.unwrap_or(if compat {
                Ipv4Addr::UNSPECIFIED.into()
            } else {
                Ipv4Addr::LOCALHOST.into()
            }),
            port: read.one("DEBUG_PORT", values::port)?,
        },
    })
}

/// What has no effect beside the others.
pub(super) fn idle(read: &Reader<'_>) -> Vec<&'static str> {
    let of_no_socket = read.given("GRPC_UDS_MODE").is_some() && read.given("GRPC_UDS").is_none();
    let line = "GRPC_UDS_MODE (--grpc-uds-mode): without effect, since gRPC is on a port: set GRPC_UDS, or take it away";
    Vec::from_iter(of_no_socket.then_some(line))
}

/// A socket stands instead of the port, as in the reference.
fn grpc(read: &Reader<'_>, port: Endpoint) -> Result<GrpcAt, SettingsError> {
    let mode = read.opt("GRPC_UDS_MODE", file_mode)?;
    let Some(path) = read.opt("GRPC_UDS", socket_path)? else { return Ok(GrpcAt::Tcp(port)) };
    match mode {
        Some(_) if is_abstract(&path) => {
            let want = "a name that begins with `@` is no file, and has no permissions: leave it out";
            Err(read.missing("GRPC_UDS_MODE", want))
        }
        mode => Ok(GrpcAt::Unix { path, mode }),
    }
}

/// Whether this names a socket without a file.
pub fn is_abstract(path: &Path) -> bool {
    path.as_os_str().as_bytes().starts_with(b"@")
}

/// The longest path of a socket, in bytes: `sun_path` of unix(7) has 108, of which the last is NUL.
const SOCKET_PATH_MAX: usize = 107;

/// A socket's path.
///
/// # Errors
/// When it is none, or longer than the system takes.
pub fn socket_path(text: &str) -> Result<PathBuf, values::Want> {
    if text.starts_with("unix:") {
        return Err("write the path alone, such as `/run/tollgate/grpc.sock`".to_owned());
    }
    if matches!(text, "" | "@") || text.ends_with('/') || text.contains('\0') {
        return Err("write a file's path, such as `/run/tollgate/grpc.sock`".to_owned());
    }
    match text.len() {
        ..=SOCKET_PATH_MAX => Ok(PathBuf::from(text)),
        long => Err(format!("a socket's path has at most {SOCKET_PATH_MAX} bytes, and this one {long}")),
    }
}

/// Permissions as chmod(1) has them.
fn file_mode(text: &str) -> Result<u32, values::Want> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("write permissions as chmod has them, such as `660` or `0666`".to_owned()),
    }
}

/// `None` is plain text.
fn grpc_tls(read: &Reader<'_>) -> Result<Option<GrpcTls>, SettingsError> {
    let on = read.one("GRPC_SERVER_USE_TLS", values::boolean)?;
    let name = read.opt("GRPC_CLIENT_TLS_SAN", values::certificate_name)?;
    if !on {
        return Ok(None);
    }
    let file = |name: &'static str, why: &str| {
        read.given(name).map(PathBuf::from).ok_or_else(|| read.missing(name, why))
    };
    let cert = file("GRPC_SERVER_TLS_CERT", "GRPC_SERVER_USE_TLS needs a certificate")?;
    let key = file("GRPC_SERVER_TLS_KEY", "a certificate needs its key")?;
    let client = match (read.given("GRPC_CLIENT_TLS_CACERT"), name) {
        (Some(ca), name) => Some(GrpcClients { ca: PathBuf::from(ca), name }),
        (None, None) => None,
        // It would let everybody in, and look as if it did not.
        (None, Some(_)) => {
            return Err(read.missing(
                "GRPC_CLIENT_TLS_CACERT",
                "GRPC_CLIENT_TLS_SAN needs an authority that signs clients' certificates",
            ));
        }
    };
    Ok(Some(GrpcTls { cert, key, client }))
}

impl fmt::Display for GrpcAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(endpoint) => endpoint.fmt(f),
            Self::Unix { path, .. } => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::SocketAddr::new(self.host, self.port).fmt(f)
    }
}
