//! An authority and certificates of it, as PEM files.

use std::{fs, path::PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

/// An authority, and a directory of its own.
pub(crate) struct Pki {
    dir: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    /// With `ca.pem`, the authority's own certificate.
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let pki = Self { dir: tempfile::tempdir().unwrap(), authority };
        pki.write("ca.pem", &pki.ca());
        pki
    }

    /// The authority's certificate.
    pub(crate) fn ca(&self) -> String {
        self.authority.pem()
    }

    /// A certificate for a name, and its key.
    pub(crate) fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.authority).unwrap().pem(), key.serialize_pem())
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        fs::write(self.file(file), text).unwrap();
    }

    pub(crate) fn file(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub(crate) fn path(&self, file: &str) -> String {
        self.file(file).display().to_string()
    }
}
