//! gRPC on a Unix socket, for an Envoy in the same pod: no port, and permissions of a file decide who may ask.
//!
//! A socket's file outlives a process that was killed, and then keeps the next one from listening. So a file that nobody
//! listens on is replaced; one that somebody listens on, and one that is no socket, end the start. The file is taken away
//! when the socket closes, unless it is another process' by then.

use std::{
    fs, io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::UnixListener as StdUnixListener,
    },
    path::{Path, PathBuf},
};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

use super::{Failure, listen::BACKLOG};
use crate::settings::is_abstract;

/// A listening socket and its file.
#[derive(Debug)]
pub(super) struct Unix {
    pub(super) listener: UnixListener,
    pub(super) file: File,
}

/// The file of a socket; dropped, it is gone.
#[derive(Debug)]
pub(super) struct File(Option<(PathBuf, Identity)>);

/// Device and inode.
type Identity = (u64, u64);

impl Unix {
    /// Listens on `path`, with these permissions or those that the umask leaves.
    ///
    /// # Errors
    /// When the path cannot be used, or is used.
    pub(super) fn bind(path: &Path, mode: Option<u32>) -> Result<Self, Failure> {
        let shown = path.display();
        let machine = |error: io::Error| Failure::machine(format!("cannot listen on unix:{shown}: {error}"));
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(machine)?;
        let file = match bind(&socket, path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                clear(path)?;
                bind(&socket, path)
            }
            bound => bound,
        };
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::usage(format!("GRPC_UDS: the directory of {shown} does not exist"))
            }
            _ => machine(error),
        })?;
        // Before it listens, so that nobody comes in while the permissions are not yet those.
        if let Some(mode) = mode {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(machine)?;
        }
        socket.set_nonblocking(true).map_err(machine)?;
        socket.listen(BACKLOG).map_err(machine)?;
        let listener = UnixListener::from_std(StdUnixListener::from(socket)).map_err(machine)?;
        Ok(Self { listener, file })
    }
}

fn bind(socket: &Socket, path: &Path) -> io::Result<File> {
    socket.bind(&address(path)?)?;
    if is_abstract(path) {
        return Ok(File(None));
    }
    Ok(File(Some((path.to_owned(), identity(path)?))))
}

/// Makes room where the file is of a process that is gone.
fn clear(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let used = || {
        Failure::machine(format!(
            "cannot listen on unix:{shown}: another process does; GRPC_UDS sets another path"
        ))
    };
    if is_abstract(path) {
        return Err(used());
    }
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if !is_socket {
        return Err(Failure::usage(format!("GRPC_UDS: {shown} is there and is no socket: set another path")));
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None).and_then(|probe| {
        // A process that is too busy to accept is not gone.
        probe.set_nonblocking(true)?;
        probe.connect(&address(path)?)
    });
    match probe {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!("replaced {shown}, which nobody listened on");
            fs::remove_file(path).map_err(|error| {
                Failure::machine(format!(
                    "cannot replace {shown}, which nobody listens on: {error}; GRPC_UDS sets another path"
                ))
            })
        }
        _ => Err(used()),
    }
}

/// The kernel's way to write it: `@` is a NUL there.
fn address(path: &Path) -> io::Result<SockAddr> {
    let mut bytes = path.as_os_str().as_bytes().to_vec();
    if is_abstract(path) {
        bytes[0] = 0;
    }
    SockAddr::unix(std::ffi::OsString::from_vec(bytes))
}

fn identity(path: &Path) -> io::Result<Identity> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

impl Drop for File {
    fn drop(&mut self) {
        if let Some((path, mine)) = &self.0
            && identity(path).is_ok_and(|there| there == *mine)
        {
            // Whoever starts next replaces it.
            let _ = fs::remove_file(path);
        }
    }
}
